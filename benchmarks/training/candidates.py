"""What is compared: each trains its own copy of the model, from the same values, by AdamW."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import lins
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from training.model import build
from training.settings import Settings

Step = Callable[[Sequence[torch.Tensor]], float]
"""Trains one step on the batches of its micro-batches; returns this rank's mean loss."""


def alone(s: Settings) -> Step:
    """Every rank for itself: what a step takes without communication."""
    model = build(s.shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr, fused=True)
    return _torch_step(model, optimizer, lambda last: contextlib.nullcontext())


def torch_ddp(s: Settings, zero: bool) -> Step:
    """DistributedDataParallel; zero: with ZeroRedundancyOptimizer."""
    model = DistributedDataParallel(build(s.shape), gradient_as_bucket_view=True)
    if zero:
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, lr=s.lr, fused=True
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr, fused=True)
    return _torch_step(
        model, optimizer, lambda last: contextlib.nullcontext() if last else model.no_sync()
    )


def torch_fsdp2(s: Settings, reshard: bool, hybrid: bool) -> Step:
    """fully_shard of every block and of the rest, over all ranks or (hybrid) within a node.

    Hybrid gradients are reduced between nodes in the last micro-batch only, as FSDP2 advises.
    """
    shape = (s.nodes, s.per_node) if hybrid else (s.nodes * s.per_node,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("node", "gpu")[-len(shape) :])
    model = build(s.shape)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    # By default the root, needed again at once, keeps its parameters.
    fully_shard(model, mesh=mesh, reshard_after_forward=None if reshard else False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr, fused=True)

    def synchronize(last: bool) -> contextlib.AbstractContextManager:
        model.set_is_last_backward(last)
        if hybrid:
            model.set_requires_all_reduce(last)
        return contextlib.nullcontext()

    return _torch_step(model, optimizer, synchronize)


def _torch_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    synchronize: Callable[[bool], contextlib.AbstractContextManager],
) -> Step:
    def step(batches: Sequence[torch.Tensor]) -> float:
        total = 0.0
        for i, batch in enumerate(batches):
            with synchronize(i + 1 == len(batches)):
                loss = model(batch)
                (loss / len(batches)).backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        return total / len(batches)

    return step


def lins_step(s: Settings, mesh: lins.Mesh, policy: object) -> tuple[Step, nn.Module]:
    """A placement by lins, and the wrapped model."""
    model = lins.lins_shard(build(s.shape), mesh, policy)
    optimizer = lins.AdamW(model, lr=s.lr)

    def step(batches: Sequence[torch.Tensor]) -> float:
        total = 0.0
        for i, batch in enumerate(batches):
            with lins.micro_batch(model, index=i, count=len(batches)):
                loss = model(batch)
                loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        return total / len(batches)

    return step, model


def torch_candidates(s: Settings) -> dict[str, Callable[[], Step]]:
    """Peers by name, not built yet."""
    return {
        "alone": lambda: alone(s),
        "torch ddp": lambda: torch_ddp(s, zero=False),
        "torch zero": lambda: torch_ddp(s, zero=True),
        "torch fsdp2": lambda: torch_fsdp2(s, reshard=True, hybrid=False),
        "torch fsdp2 keep": lambda: torch_fsdp2(s, reshard=False, hybrid=False),
        "torch hsdp": lambda: torch_fsdp2(s, reshard=True, hybrid=True),
    }


def barrier() -> None:
    """All ranks of the default group."""
    dist.barrier()
