"""The demonstration: one model trained under several plans on 2 x 2 ranks of this machine.

    lins demo                                            # starts its ranks itself
    torchrun --nproc-per-node 4 -m lins demo --short     # or is started as ranks

It shows the plans in the notation of layouts, compares the bytes that ranks hold and receive with
the plans' own numbers, and checks that every loss agrees with that of a single process that runs
plain torch.
"""

from __future__ import annotations

import os
from typing import Any

import lins
from lins.demo.settings import Settings
from lins.policy import resolve
from lins.processes import launch

NODES, PER_NODE = 2, 2


def run(settings: Settings) -> dict[str, Any] | None:
    """Runs the demonstration; the report, or None on ranks that have none (under torchrun).

    Raises LinsError for a policy that is not legal and when a rank fails, processes.Interrupted
    when stopped by a signal.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from lins.demo.rank import train_all

        return train_all(settings)
    mesh = lins.Mesh((NODES, PER_NODE), ("node", "gpu"))
    for policy in settings.policies:
        resolve(policy, mesh, family="planned")  # a mistake is said here, before anything starts
    return launch("lins.demo.rank", NODES, PER_NODE, settings.to_dict())
