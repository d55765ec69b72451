"""How much of what a GPU's streams do runs beside each other, from the profiler's trace.

    torchrun --nproc-per-node 8 benchmarks/gpu_overlap.py [--json overlap.json]

trains a Llama under several presets on all GPUs of one node, beside FSDP2, and says what a step
takes and how much of NCCL's time lies under compute. `make gpu-check` runs it where there are
several GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import lins
import torch
import torch.distributed as dist
from lins.demo.model import Block, Llama
from lins.demo.settings import Settings
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

Interval = tuple[float, float]
_SETTINGS = Settings(dim=1024, layers=12, heads=16, hidden=2816, seq_len=512)
LR = 1e-4
_PRESETS = ("ddp", "zero1", "zero2", "zero3", "fsdp2")


def covered(spans: Iterable[Interval], by: Iterable[Interval]) -> float:
    """The part of the length of `spans` during which something of `by` runs, 0 where there are
    none. Both may overlap among themselves: each moment counts once."""
    ours, theirs = _merged(spans), _merged(by)
    total = sum(end - begin for begin, end in ours)
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in ours for b in theirs)
    return both / total if total else 0.0


def _merged(spans: Iterable[Interval]) -> list[Interval]:
    out: list[Interval] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def device_spans(fn: Callable[[], object]) -> list[tuple[str, Interval]]:
    """What runs on the device during fn(), with its interval in microseconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        fn()
        torch.cuda.synchronize()
    return [
        (e.name, (e.time_range.start, e.time_range.end))
        for e in trace.events()
        if e.device_type == torch.autograd.DeviceType.CUDA and e.time_range.end > e.time_range.start
    ]


def hidden(spans: list[tuple[str, Interval]], what: str) -> float:
    """How much of the time of kernels and copies whose name contains a word lies under others."""
    ours = [s for name, s in spans if what in name.lower()]
    return covered(ours, [s for name, s in spans if what not in name.lower()])


def main() -> None:
    """Every rank's part; rank 0 prints and writes."""
    p = argparse.ArgumentParser(description="Overlap on several GPUs.")
    p.add_argument("--json", help="file for the rows")
    args = p.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rows = measure()
    if dist.get_rank() == 0:
        for row in rows:
            print(json.dumps(row))
        if args.json:
            with open(args.json, "w") as f:
                json.dump(rows, f, indent=1)
    dist.destroy_process_group()


def measure() -> list[dict[str, Any]]:
    """A row for each candidate, on every rank."""
    batch = tokens()
    rows = [_row("torch FSDP2", stepper(*fsdp2(llama()), batch))]
    mesh = lins.init_mesh((1, dist.get_world_size()))
    for preset in _PRESETS:
        ours = lins.lins_shard(llama(), mesh, preset)
        rows.append(_row(f"lins {preset}", stepper(ours, lins.AdamW(ours, lr=LR), batch)))
        del ours
        torch.cuda.empty_cache()
    return rows


def llama() -> nn.Module:
    """The model of these benchmarks, 150 million parameters, the same on every rank."""
    torch.manual_seed(0)
    return Llama(_SETTINGS).to("cuda")


def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (8, _SETTINGS.seq_len), device="cuda")


def stepper(
    model: nn.Module, opt: torch.optim.Optimizer, batch: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """A function that makes one training step and returns its loss."""

    def step() -> torch.Tensor:
        logits = model(batch)[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(logits, batch[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return step


def fsdp2(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for block in model.modules():
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=LR, fused=True)


def _row(name: str, step: Callable[[], object], rounds: int = 10) -> dict[str, Any]:
    for _ in range(3):
        step()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)

    def two() -> None:
        step()
        step()

    return {
        "what": name,
        "step_ms": 1e3 * statistics.median(times),
        "nccl_hidden": hidden(device_spans(two), "nccl"),
    }


if __name__ == "__main__":
    main()
