"""state_dict and load_state_dict of wrapped models, as of the unwrapped model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lins._core import DTensor, distribute_tensor
from lins.errors import LinsValueError

if TYPE_CHECKING:
    from lins.sharding import Handle


def state_dict(
    model: nn.Module, *, sharded: bool = False, rank0_only: bool = False, cpu: bool = False
) -> dict[str, Any]:
    """The parameters and buffers of a wrapped model by the names of the unwrapped one.

    Args:
        model: wrapped by lins_shard.
        sharded: this rank's parts, as DTensors that share the model's memory; nothing is
            communicated.
        rank0_only: full tensors on rank 0, an empty dict on all others.
        cpu: full tensors in host memory.

    Full tensors are new where P is cut: collective then, unit by unit. `model.state_dict()` is the
    same as this function without options. Tied parameters appear under each of their names.
    """
    from lins.sharding import handle_of

    handle = handle_of(model)
    if sharded:
        handle.updates.finish()
        parts = dict(handle.core.states())
        out: dict[str, Any] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            out[name] = parts[handle.name_of[id(p)]]["param"]
        return out | dict(_persistent_buffers(model))
    whole = model.state_dict()
    if rank0_only and handle.core.mesh.rank != 0:
        return {}
    return {n: t.cpu() if cpu else t for n, t in whole.items()}


def _persistent_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield (f"{prefix}.{name}" if prefix else name), buffer


def add_state_dict_hooks(model: nn.Module, handle: Handle, modules: Sequence[nn.Module]) -> None:
    """Makes model.state_dict() gather cut parameters, and load_state_dict() write through."""
    cut = {unit for unit, plan, _ in handle.core.plans() if plan.gather.steps}
    for index, module in enumerate(modules):
        members = _Members(handle, index, module)
        if (handle.unit_names[index] or "root") in cut:
            module.register_state_dict_post_hook(partial(_Members.complete, members))
        module.register_load_state_dict_pre_hook(members.before_load)
        module.register_load_state_dict_post_hook(members.after_load)


class _Members:
    """The parameters of one unit within its module."""

    def __init__(self, handle: Handle, index: int, module: nn.Module) -> None:
        self.handle = handle
        self.index = index
        self.names = {  # within the module; a tied parameter has several
            name: p
            for name, p in module.named_parameters(remove_duplicate=False)
            if handle.unit_of.get(id(p)) == index
        }
        self.loading: dict[str, torch.Tensor] = {}  # values of masters

    def complete(self, module: nn.Module, out: dict[str, Any], prefix: str, _: Any) -> None:
        """Puts whole copies in place of the unit's cut parameters."""
        names = [n for n in self.names if not isinstance(out.get(prefix + n), nn.Parameter)]
        core = self.handle.core
        core.unshard([self.index])
        try:
            copies: dict[int, torch.Tensor] = {}
            for name in names:
                p = self.names[name]
                if prefix + name in out:
                    copies.setdefault(id(p), p.detach().clone())
                    out[prefix + name] = copies[id(p)]
        finally:
            core.reshard([self.index], False)

    def before_load(
        self, module: nn.Module, given: dict[str, Any], prefix: str, metadata: dict, *_: Any
    ) -> None:
        """Completes the unit's parameters, to be written to."""
        if metadata.get("assign_to_params_buffers"):
            raise LinsValueError(
                "load_state_dict(assign=True) would replace parameters whose memory lins manages: "
                "load without assign"
            )
        self.handle.core.unshard([self.index])
        self.loading = {
            self.handle.name_of[id(p)]: given[prefix + name]
            for name, p in self.names.items()
            if isinstance(given.get(prefix + name), torch.Tensor)
            and given[prefix + name].shape == p.shape
        }

    def after_load(self, module: nn.Module, _: Any) -> None:
        """Keeps this rank's parts of what was loaded, masters in their own precision."""
        self.handle.core.reshard([self.index], True)
        values, self.loading = self.loading, {}
        for name, state in self.handle.core.states(self.index):
            master = state["master"]
            if master is not None and name in values:
                local = master.to_local()
                local.copy_(part_like(values[name].to(local.device, local.dtype), master))


def part_like(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """This rank's part of a tensor that every rank has whole, under the layout of a DTensor."""
    return distribute_tensor(whole.detach(), like.mesh, like.layout).to_local()
