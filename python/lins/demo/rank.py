"""What each process of the demonstration does, started by the launcher or by torchrun."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

import lins
from lins.demo.data import Batches
from lins.demo.progress import Reporter
from lins.demo.settings import Settings
from lins.demo.summary import summarize
from lins.demo.train import train_alone, train_policy
from lins.processes import serve


def train_all(s: Settings) -> dict[str, Any] | None:
    """Trains alone on rank 0, then under every policy on all ranks; the report, on rank 0 only."""
    dist.init_process_group("gloo")
    mesh = lins.init_mesh(timeout=120.0)
    batches = Batches(s, mesh.size)
    mine: dict[str, Any] = {}
    with Reporter(s.steps, 1 + len(s.policies), shown=mesh.rank == 0) as reporter:

        def report(name: str) -> Callable[[int, float], None]:
            return lambda step, loss: reporter.step(name, step, loss)

        # The other ranks wait for it at the barrier, idle.
        alone = train_alone(s, batches, report("one process")) if mesh.rank == 0 else None
        dist.barrier()
        for policy in s.policies:
            mine[policy] = train_policy(s, policy, mesh, batches, report(policy))
            gc.collect()
    everyone: list[Any] = [None] * mesh.size
    dist.all_gather_object(everyone, mine)
    if alone is None:
        return None
    shape = dict(zip(mesh.axes, mesh.shape, strict=True))
    return summarize(s, shape, alone, everyone)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), lambda settings: train_all(Settings.from_dict(settings)))
