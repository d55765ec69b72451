"""Models built on the meta device: memory and values, one unit at a time."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from lins.errors import LinsValueError

InitFn = Callable[[nn.Module], None]
Unit = tuple[str, nn.Module, list[tuple[str, nn.Parameter]]]

# torch's generators belong to the process, and ranks may be threads of one.
_random = threading.Lock()


def _is_meta(module: nn.Module) -> bool:
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(t.is_meta for t in own)


def check_meta(model: nn.Module, units: Sequence[Unit], init_fn: InitFn | None) -> None:
    """Raises LinsError for meta parameters and buffers that nothing would give values to."""
    home = {id(p): name for name, _, params in units for _, p in params}
    for name, module in model.named_modules():
        if not _is_meta(module):
            continue
        if init_fn is None and not hasattr(module, "reset_parameters"):
            raise LinsValueError(
                f"{name or 'the model'} ({type(module).__name__}) has parameters or buffers on the "
                "meta device and no reset_parameters(): pass init_fn, which gives a module's own "
                "their values"
            )
        homes = {home[id(p)] for p in module.parameters(recurse=False)}
        if len(homes) > 1:
            raise LinsValueError(
                f"the parameters of {name} ({type(module).__name__}) on the meta device belong to "
                f"the units {', '.join(repr(h or 'root') for h in sorted(homes))}, which get their "
                "values one after another: give the model memory first"
            )


def materializer(
    model: nn.Module,
    params: Sequence[tuple[str, nn.Parameter]],
    init_fn: InitFn | None,
    seed: int,
) -> Callable[[], list[torch.Tensor]] | None:
    """What gives a unit's meta parameters memory and values; None for a unit that has both."""
    meta = {id(p) for _, p in params if p.is_meta}
    if not meta:
        return None

    def materialize() -> list[torch.Tensor]:
        for _, p in params:
            if p.is_meta:
                # The object stays: its holders see the memory.
                fresh = nn.Parameter(
                    torch.empty_like(p, device=_device()), requires_grad=p.requires_grad
                )
                torch.utils.swap_tensors(p, fresh)
        for name, module in model.named_modules():
            if any(id(p) in meta for p in module.parameters(recurse=False)):
                _initialize(name, module, init_fn, seed)
        return [p for _, p in params]

    return materialize


def materialize_buffers(model: nn.Module, init_fn: InitFn | None, seed: int) -> None:
    """Memory and values for buffers on the meta device of modules without parameters there."""
    for name, module in model.named_modules():
        if any(b.is_meta for b in module.buffers(recurse=False)):
            _initialize(name, module, init_fn, seed)


def _device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _initialize(name: str, module: nn.Module, init_fn: InitFn | None, seed: int) -> None:
    """Values of what the module itself holds, from the seed and its name alone."""
    unset = []
    for key, buffer in module.named_buffers(recurse=False):
        if buffer.is_meta:
            fresh = torch.empty_like(buffer, device=_device())
            if fresh.is_floating_point():
                fresh.fill_(torch.nan)  # to see whether it is given a value
                unset.append(key)
            module._buffers[key] = fresh
    with _random, torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed ^ zlib.crc32(name.encode()))
        if init_fn is not None:
            init_fn(module)
        else:
            module.reset_parameters()
    for key in unset:
        buffer = module._buffers[key]
        if buffer.numel() and bool(buffer.isnan().all()):
            how = "init_fn" if init_fn is not None else "reset_parameters()"
            raise LinsValueError(
                f"buffer {name + '.' if name else ''}{key} on the meta device got no value from "
                f"{how}: set it in init_fn"
            )
