"""Any elementwise optimizer of torch over shards."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lins import _core
from lins.errors import LinsValueError
from lins.optimizers.base import ShardedOptimizer
from lins.optimizers.groups import ParamGroups

# Rules that look at more than one element at a time: parts of a parameter are not enough for them.
_NOT_ELEMENTWISE = {
    "Adafactor": "lins.Adafactor",
    "LBFGS": "none",
    "Muon": "lins.Muon",
    "SparseAdam": "lins.Adam",
}


def wrap_optimizer(
    optimizer: type[torch.optim.Optimizer],
    model: nn.Module,
    *,
    param_groups: ParamGroups = (),
    **options: Any,
) -> WrappedOptimizer:
    """An elementwise torch optimizer over a wrapped model's optimizer-state shards.

    Args:
        optimizer: a class such as torch.optim.NAdam whose rule treats each element by itself. It
            sees this rank's part of each parameter, as a 1-D tensor, fp32 where parameters are of
            lower precision.
        model: wrapped by lins_shard, on any device. With offload_optimizer the class updates the
            masters where they are, in host memory, and keeps its states there too; there must be
            masters then (param_dtype of lower precision).
        param_groups: as in lins.AdamW.
        options: what the class takes.

    step() is collective, and skips a step with a gradient that is not finite as lins' own do.

    Raises:
        LinsError: for rules that are known not to be elementwise.

    Example:
        >>> import lins, torch
        >>> def train(mesh):
        ...     model = lins.lins_shard(torch.nn.Linear(4, 1, bias=False), mesh, "zero3")
        ...     opt = lins.wrap_optimizer(torch.optim.Adagrad, model, lr=0.1)
        ...     model(torch.ones(2, 4)).sum().backward()
        ...     opt.step()
        ...     return opt.state_dict()["state"][0]["sum"].full_tensor().tolist()
        >>> lins.testing.run((1, 2), ("node", "gpu"), train)
        [[[4.0, 4.0, 4.0, 4.0]], [[4.0, 4.0, 4.0, 4.0]]]
    """
    return WrappedOptimizer(optimizer, model, param_groups, options)


class WrappedOptimizer(ShardedOptimizer):
    """What wrap_optimizer returns. `inner` is the optimizer over this rank's parts."""

    _fixed_states = False

    def __init__(
        self,
        optimizer: type[torch.optim.Optimizer],
        model: nn.Module,
        param_groups: ParamGroups,
        options: dict[str, Any],
    ) -> None:
        if not isinstance(optimizer, type) or not issubclass(optimizer, torch.optim.Optimizer):
            raise LinsValueError(f"{optimizer!r} is no class of torch.optim.Optimizer")
        if optimizer.__name__ in _NOT_ELEMENTWISE:
            raise LinsValueError(
                f"{optimizer.__name__} looks at whole parameters, of which a rank has parts; "
                f"in its place: {_NOT_ELEMENTWISE[optimizer.__name__]}"
            )
        try:
            probe = optimizer([nn.Parameter(torch.zeros(1))], **options)
        except (TypeError, ValueError) as e:
            raise LinsValueError(f"{optimizer.__name__}: {e}") from e
        self._class = optimizer
        super().__init__(model, probe.defaults, param_groups)

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in group.items() if k != "params"}

    def _make(self, options: list[dict[str, Any]]) -> _core.ExternalOptimizer:
        core = _core.ExternalOptimizer(self._handle.core)
        self._shards = {name: nn.Parameter(part) for name, part, _ in core.parts()}
        groups = [
            {**o, "params": [self._shards[self._handle.name_of[id(p)]] for p in g["params"]]}
            for o, g in zip(options, self.param_groups, strict=True)
        ]
        self.inner = self._class(groups)
        return core

    def _update(self) -> bool:
        outcome = self._core.begin_step()
        if outcome != "ready":
            return outcome == "nothing"
        for group, own in zip(self.inner.param_groups, self._all_options(), strict=True):
            group.update(own)
        try:
            for name, _, grad in self._core.parts():
                shard = self._shards[name]
                shard.grad = None if grad is None else grad.to(shard)
            self.inner.step()
        finally:
            for shard in self._shards.values():
                shard.grad = None
        self._core.end_step()
        return True

    def _records(self) -> list[tuple[str, None, dict[str, Any]]]:
        return [
            (
                name,
                None,
                {
                    key: self._core.as_state(name, value) if _by_element(value, shard) else value
                    for key, value in self.inner.state.get(shard, {}).items()
                },
            )
            for name, shard in self._shards.items()
        ]

    def _like(self, name: str, value: Any, here: Any) -> _core.DTensor | None:
        """What a loaded state must look like; None: one that is not by element."""
        like = self._core.as_state(name, self._shards[name].detach())
        if isinstance(value, _core.DTensor):
            return like
        scalar = not isinstance(value, torch.Tensor) or (value.dim() == 0 and len(like.shape) > 0)
        return None if scalar else like

    def _load_records(self, records: list[tuple[str, Any, dict[str, Any]]]) -> None:
        self.inner.state.clear()
        for name, step, parts in records:
            shard = self._shards[name]
            state = {key: _copy(part, shard) for key, part in parts.items()}
            if step is not None:
                state["step"] = _copy(step, shard)
            self.inner.state[shard] = state


def _by_element(value: Any, shard: nn.Parameter) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == shard.shape


def _copy(value: Any, shard: nn.Parameter) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone() if value.dim() == 0 else value.reshape(shard.shape).clone()
