"""lins.measure_units: how long the units of a module compute."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lins.description import group_units
from lins.errors import LinsValueError
from lins.module_trace import Call, as_call, tensors_in, trace_forward, unchanged
from lins.sharding import UnitRule, find_units


def measure_units(
    model: nn.Module,
    sample: Any,
    *,
    units: UnitRule = "block",
    repeats: int = 5,
) -> dict[str, dict[str, float]]:
    """Seconds of each unit's forward and backward for one micro-batch, by unit name.

    Args:
        model: not wrapped, on the device to measure.
        sample: as for lins.describe.
        units: as in lins_shard; of units alike one is measured.
        repeats: the median of so many counts, after one that warms up.

    Each unit is called by itself with what the forward of the sample passes to it; the root is what
    the whole model takes beyond its units. Gradients are not stored, the module is left as it was.
    Nothing is communicated.

    Raises:
        LinsError: when the forward fails, or on the meta device.

    Example:
        >>> import lins, torch
        >>> list(lins.measure_units(torch.nn.Linear(8, 8), torch.zeros(4, 8)))
        ['root']
    """
    if any(p.device.type == "meta" for p in model.parameters()):
        raise LinsValueError("nothing computes on the meta device: measure a module with values")
    if repeats < 1:
        raise LinsValueError(f"repeats is {repeats}, must be at least 1")
    found = find_units(model, units)
    traces, _ = trace_forward(model, [m for _, m, _ in found], sample, keep_calls=True)
    groups = group_units([(n, p, t) for (n, _, p), t in zip(found, traces, strict=True)])
    modules = {n: m for n, m, _ in found}
    out: dict[str, dict[str, float]] = {}
    rest = {"forward": 0.0, "backward": 0.0}
    with unchanged(model), torch.enable_grad():
        rest["forward"], rest["backward"] = _time(model, as_call(sample), repeats)
        for name, run in groups.items():
            first, _, trace = run[0]
            if not first:
                out[name] = rest
                continue
            calls = [_time(modules[first], call, repeats) for call in trace.calls]
            forward, backward = (sum(x) for x in zip((0.0, 0.0), *calls, strict=True))
            out[name] = {"forward": forward, "backward": backward}
            rest["forward"] = max(0.0, rest["forward"] - forward * len(run))
            rest["backward"] = max(0.0, rest["backward"] - backward * len(run))
    return out


def _time(module: nn.Module, call: Call, repeats: int) -> tuple[float, float]:
    """Median seconds of a forward and of its backward."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    forwards, backwards = [], []
    for i in range(repeats + 1):
        args, kwargs = pytree.tree_map(_fresh, call)
        inputs = [t for t in tensors_in((args, kwargs)) if t.requires_grad] + parameters
        forward, output = _seconds(inputs, lambda: module(*args, **kwargs))  # noqa: B023
        outputs = [t for t in tensors_in(output) if t.requires_grad]
        backward = 0.0
        if outputs:
            ones = [torch.ones_like(t) for t in outputs]
            backward, _ = _seconds(
                inputs,
                lambda: torch.autograd.grad(outputs, inputs, ones, allow_unused=True),  # noqa: B023
            )
        if i > 0:
            forwards.append(forward)
            backwards.append(backward)
    return statistics.median(forwards), statistics.median(backwards)


def _fresh(x: Any) -> Any:
    """The same values without history, with a gradient where there was or could be one."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().requires_grad_(x.requires_grad)


def _seconds(tensors: list[torch.Tensor], fn: Callable[[], Any]) -> tuple[float, Any]:
    on_gpu = any(t.is_cuda for t in tensors)
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    value = fn()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begin, value
