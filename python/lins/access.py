"""Looking into a wrapped model: states, whole parameters, memory; and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn

from lins._core import DTensor
from lins.sharding import handle_of


class State(NamedTuple):
    """The distributed states of one parameter. None: absent (not needed, or not made yet).

    grad: the reduced and divided mean, after the last micro-batch of a step. Of a parameter that
    no rank
    has used: zeros, and None once clip_grad_norm_ or the optimizer has compared the ranks.
    exp_avg to variance: what the optimizer keeps by element; the factors of Adafactor and 8-bit
    moments are in its state_dict(). With lins_shard(offload_optimizer=True), master and those are
    tensors in host memory.
    """

    param: DTensor
    grad: DTensor | None = None
    master: DTensor | None = None
    exp_avg: DTensor | None = None
    exp_avg_sq: DTensor | None = None
    max_exp_avg_sq: DTensor | None = None
    momentum_buffer: DTensor | None = None
    variance: DTensor | None = None


def states(model: nn.Module) -> dict[str, State]:
    """Every parameter's states by name, as DTensors that share the model's memory.

    No communication. With P cut, a parameter's layout is a window of its unit's flat buffer:
    'F(gpu; 128/4096)'.
    """
    return {name: State(**s) for name, s in handle_of(model).core.states()}


@contextmanager
def micro_batch(
    model: nn.Module, index: int, count: int, divisor: float | None = None
) -> Iterator[None]:
    """Makes the backward inside number `index` of the `count` that make up a step.

    Gradients accumulate; after the last one they are reduced to OS's owners and divided by
    `divisor`, by default ranks * count: the mean. divisor=1 is the plain sum, for a loss that is
    divided by a global count already. Index 0 discards what an unfinished step left.

    Raises LinsError for an index out of order, and on every rank when their counts differ.
    """
    core = handle_of(model).core
    core.begin_micro_batch(index, count, divisor)
    try:
        yield
    finally:
        core.end_micro_batch()


@contextmanager
def unsharded(module: nn.Module, writeback: bool = False) -> Iterator[None]:
    """Makes the parameters of a wrapped model, or of a module inside one, complete.

    writeback: keep what was written to them; every rank must write the same.
    Collective: gathers the units that hold the parameters.
    """
    handle = handle_of(module)
    units = sorted({handle.unit_of[id(p)] for p in module.parameters()})
    handle.core.unshard(units)
    try:
        yield
    except BaseException:
        handle.core.reshard(units, False)
        raise
    handle.core.reshard(units, writeback)


def memory(model: nn.Module) -> dict[str, int]:
    """Bytes of this rank.

    param, grad, optim: persistent on the model's device, padding included; padding: how much of
    param that is. optim_host: of optimizer states and masters in host memory, where
    lins_shard(offload_optimizer=True) keeps them.
    buffers, peak_buffers: lent now and at most; live_leases, peak_leases: how many;
    pooled: allocated for them.
    """
    return handle_of(model).core.memory()
