"""One forward of a module, watched: its operations, and what it keeps for the backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from lins.errors import LinsError, LinsValueError

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class UnitTrace:
    """What one unit did, units inside it not counted.

    flops: multiplications and additions of matrix products, convolutions and attention.
    saved_bytes: kept for the backward, parameters and buffers not counted; a storage counts for
    the unit that saves it first. input_bytes: of the tensors that come in, likewise.
    """

    flops: int = 0
    saved_bytes: int = 0
    input_bytes: int = 0
    calls: list[Call] = field(default_factory=list)


def as_call(sample: Any) -> Call:
    """A sample as arguments: a tuple or list, a dict of keywords, or one argument."""
    if isinstance(sample, dict):
        return (), sample
    if isinstance(sample, tuple | list):
        return tuple(sample), {}
    return (sample,), {}


def trace_forward(
    model: nn.Module, units: Sequence[nn.Module], sample: Any, keep_calls: bool = False
) -> tuple[list[UnitTrace], Any]:
    """Runs model(sample) once; what each unit did, in their order, and the output.

    The model itself is among the units: it gets what no other one does. keep_calls keeps the
    arguments of each unit's calls. Buffers and the random generator are as before afterwards.
    Raises LinsError when the forward fails.
    """
    watch = _Watch(model, units, keep_calls)
    args, kwargs = as_call(sample)
    try:
        with unchanged(model), torch.enable_grad(), watch:
            output = model(*args, **kwargs)
    except LinsError:
        raise
    except Exception as e:
        raise LinsValueError(
            f"the forward of {type(model).__name__} failed on the sample: {type(e).__name__}: {e}"
        ) from e
    return watch.traces, output


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Puts buffers and the random generators back afterwards."""
    kept = {n: b.detach().clone() for n, b in model.named_buffers() if b.device.type != "meta"}
    cuda = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(cuda):
        try:
            yield
        finally:
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    if name in kept:
                        buffer.copy_(kept[name])


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of a nested value."""
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


class _Watch:
    """Hooks on the units; whichever was entered last and not left is charged."""

    def __init__(self, model: nn.Module, units: Sequence[nn.Module], keep_calls: bool) -> None:
        self.traces = [UnitTrace() for _ in units]
        self._units = list(units)
        self._keep_calls = keep_calls
        self._running: list[int] = []
        self._flops = FlopCounterMode(display=False)
        self._charged = 0
        # Storages by their address; the tensors are held, so that none is given to another.
        self._seen = {_storage(t): t for t in (*model.parameters(), *model.buffers())}
        self._inputs = dict(self._seen)
        self._saved = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)
        self._hooks: list[Any] = []

    def __enter__(self) -> None:
        for index, module in enumerate(self._units):
            self._hooks += [
                module.register_forward_pre_hook(self._enter_unit(index), with_kwargs=True),
                module.register_forward_hook(self._leave_unit, with_kwargs=True, always_call=True),
            ]
        self._flops.__enter__()
        self._saved.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._saved.__exit__(*error)
        self._flops.__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _charge(self) -> None:
        total = self._flops.get_total_flops()
        if self._running:
            self.traces[self._running[-1]].flops += total - self._charged
        self._charged = total

    def _enter_unit(self, index: int) -> Callable[..., None]:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._charge()
            self._running.append(index)
            trace = self.traces[index]
            for t in tensors_in((args, kwargs)):
                trace.input_bytes += _new_bytes(t, self._inputs)
            if self._keep_calls:
                trace.calls.append((args, kwargs))

        return enter

    def _leave_unit(self, *_: Any) -> None:
        self._charge()
        self._running.pop()

    def _pack(self, t: torch.Tensor) -> torch.Tensor:
        if self._running:
            self.traces[self._running[-1]].saved_bytes += _new_bytes(t, self._seen)
        return t


def _storage(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _new_bytes(t: torch.Tensor, seen: dict[int, torch.Tensor]) -> int:
    key = _storage(t)
    if key in seen:
        return 0
    seen[key] = t.detach()
    return t.untyped_storage().nbytes()
