"""The training loops: one process with plain torch, and one rank of a mesh with lins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import lins
from lins.demo import measure
from lins.demo.data import Batches
from lins.demo.model import build
from lins.demo.settings import Settings

OnStep = Callable[[int, float], None]


def loss_of(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy per byte."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def clip(params: list[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
    """Clips as torch's clip_grad_norm_ does, by a norm summed in fp64.

    torch's fp32 sums were seen to be off by 2e-7 to 2e-5 of the norm, by the step. AdamW carries it
    on: norms of step 20 then differed by 7e-5 between plain torch with and without this.
    """
    norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float64) for p in params]
    norm = torch.linalg.vector_norm(torch.stack(norms)).float()
    torch.nn.utils.clip_grads_with_norm_(params, max_norm, norm)
    return norm


def train_alone(s: Settings, batches: Batches, on_step: OnStep) -> dict[str, Any]:
    """Plain torch over all chunks of every step, gradients averaged. Nothing of lins takes part."""
    model = build(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr)
    losses, norms, seconds = [], [], []
    for step in range(s.steps):
        begin = time.perf_counter()
        total = 0.0
        for index in range(batches.count):
            loss = loss_of(model, *batches.chunk(step, index))
            (loss / batches.count).backward()
            total += loss.item()
        norm = clip(list(model.parameters()), s.max_norm)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
        losses.append(total / batches.count)
        norms.append(norm.item())
        on_step(step, losses[-1])
    return {"losses": losses, "norms": norms, "seconds": seconds}


def train_policy(
    s: Settings, policy: str, mesh: Any, batches: Batches, on_step: OnStep
) -> dict[str, Any]:
    """One rank's part under a policy: losses, times, what it held and the last step received."""
    model = lins.lins_shard(build(s), mesh, policy)
    optimizer = lins.AdamW(model, lr=s.lr)
    losses, norms, seconds = [], [], []
    for step in range(s.steps):
        with lins.trace() as trace:
            begin = time.perf_counter()
            total = 0.0
            for i in range(s.micro_batches):
                with lins.micro_batch(model, index=i, count=s.micro_batches):
                    loss = loss_of(model, *batches.of_rank(step, i, mesh.rank))
                    loss.backward()
                total += loss.item()
            norm = lins.clip_grad_norm_(model, s.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - begin)
        losses.append(total / s.micro_batches)
        norms.append(norm.item())
        on_step(step, losses[-1])
    return {
        "losses": losses,
        "norms": norms,
        "seconds": seconds,
        "plan": measure.planned(model, s.micro_batches),
        "memory": measure.held(model),
        "received": measure.received(trace.records),
    }
