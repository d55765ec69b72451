"""lins.describe: a real module as planning sees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lins import _planning
from lins.errors import LinsValueError
from lins.module_trace import UnitTrace, tensors_in, trace_forward
from lins.sharding import UnitRule, find_units

_LOSS_COPY = 4  # bytes of a logit in the loss' fp32 copy


def describe(
    module: nn.Module,
    sample: Any = None,
    seq_len: int = 1,
    micro_batch: int = 1,
    *,
    units: UnitRule = "block",
    recompute: str = "none",
    state_bytes: dict[str, int] | None = None,
    optimizer: str | None = None,
    name: str | None = None,
    measure: bool = False,
) -> _planning.ModelSpec:
    """The units of a module: what solve() and Plan.uniform() take.

    Args:
        module: not wrapped yet, in the dtype in which it will be trained. On the meta device it
            costs no memory, whatever its size.
        sample: what one micro-batch passes to it: one argument, a tuple of them, or a dict of
            keywords, on the module's device. Without one only parameters are known.
        seq_len: tokens of a sequence.
        micro_batch: sequences in the sample.
        units: as in lins_shard. The elements of a list, all alike, are one with a repeat count.
        recompute: "none", or "full": units keep their inputs only.
        state_bytes: {"param", "grad", "master", "moments"} per element; default 2, 2, 4, 8.
        optimizer: in place of "moments": "adamw", "adam", "amsgrad", "sgd", "sgd_momentum", "lion",
            "adamw8bit", "adafactor" or "muon".
        name: default, the module's class.
        measure: also time each unit's forward and backward on its device.

    A tied parameter counts once, in the root if several units share it; frozen ones are counted.
    Flops are those of matrix products, convolutions and attention in one forward; activations the
    storages that autograd keeps, parameters and buffers not counted. What torch.utils.checkpoint
    holds back is not seen. The output is taken for logits: its bytes, and an fp32 copy.

    Nothing is communicated; the module is left as it was.

    Raises:
        LinsError: for wrapped modules, and when the forward fails.

    Example:
        >>> import lins, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> lins.describe(net, torch.zeros(4, 8)).units[0].forward_flops
        512.0
    """
    if not isinstance(module, nn.Module):
        raise LinsValueError(f"{type(module).__name__} is no torch.nn.Module")
    if any(hasattr(p, "_lins_handle") for p in module.parameters()):
        raise LinsValueError(
            f"{type(module).__name__} is wrapped already: describe a module before lins_shard"
        )
    if measure and sample is None:
        raise LinsValueError("measure=True needs a sample to compute with")
    found = find_units(module, units)
    traces = [UnitTrace() for _ in found]
    logits = 0
    if sample is not None:
        traces, output = trace_forward(module, [m for _, m, _ in found], sample)
        logits = sum(
            t.numel() * (t.element_size() + _LOSS_COPY)
            for t in tensors_in(output)
            if t.is_floating_point()
        )
    seconds: dict[str, dict[str, float]] = {}
    if measure:
        from lins.profiling.units import measure_units

        seconds = measure_units(module, sample, units=units)
    traced = [(n, p, t) for (n, _, p), t in zip(found, traces, strict=True)]
    return _planning.ModelSpec(
        units=[_unit(n, run, seconds) for n, run in group_units(traced).items()],
        seq_len=seq_len,
        micro_batch=micro_batch,
        name=name or type(module).__name__,
        recompute=recompute,
        state_bytes=state_bytes,
        optimizer=optimizer,
        logits_bytes=logits,
    )


Traced = tuple[str, list[tuple[str, nn.Parameter]], UnitTrace]


def group_units(traced: list[Traced]) -> dict[str, list[Traced]]:
    """Units by the name that plans know them by.

    The elements of a list that are all alike are one, by the list's name: its copies are layers.0,
    layers.1 and so on. Alike: the same parameters in shape, dtype and being frozen or not, and the
    same flops. All others are by themselves, and the model's own is the root.
    """
    lists: dict[str, list[Traced]] = {}
    for item in traced:
        lists.setdefault(_list_of(item[0]), []).append(item)
    out: dict[str, list[Traced]] = {}
    for item in traced:
        name = item[0]
        stem = _list_of(name)
        run = lists[stem]
        numbered = [x[0] for x in run] == [f"{stem}.{i}" for i in range(len(run))]
        if stem and len(run) > 1 and numbered and all(_alike(run[0], x) for x in run):
            out[stem] = run
        else:
            out[name or "root"] = [item]
    return out


def _list_of(name: str) -> str:
    return name.rpartition(".")[0]


def _alike(a: Traced, b: Traced) -> bool:
    def shape(x: Traced) -> list[tuple[torch.Size, torch.dtype, bool]]:
        return [(p.shape, p.dtype, p.requires_grad) for _, p in x[1]]

    return shape(a) == shape(b) and a[2].flops == b[2].flops


def _unit(name: str, run: list[Traced], seconds: dict[str, dict[str, float]]) -> _planning.Unit:
    parameters = [p for _, p in run[0][1]]
    time = seconds.get(name, {"forward": 0.0, "backward": 0.0})

    def mean(values: list[int]) -> int:
        return -(-sum(values) // len(values))

    return _planning.Unit(
        name,
        parameters=sum(p.numel() for p in parameters),
        repeat=len(run),
        frozen=sum(p.numel() for p in parameters if not p.requires_grad),
        forward_flops=run[0][2].flops,
        # The first of several saves what all share, such as a mask.
        activation_bytes=mean([t.saved_bytes for _, _, t in run]),
        boundary_bytes=mean([t.input_bytes for _, _, t in run]),
        forward_seconds=time["forward"],
        backward_seconds=time["backward"],
    )
