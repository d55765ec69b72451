"""Optimizers over the shards of a wrapped model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from lins import _core
from lins.errors import LinsRuntimeError, LinsValueError
from lins.sharding import Handle, handle_of

_log = logging.getLogger("lins")


class AdamW(torch.optim.Optimizer):
    """AdamW with decoupled weight decay over a wrapped model's optimizer-state shards.

    Args:
        model: wrapped by lins_shard.
        lr, betas, eps, weight_decay, maximize: as in torch.optim.AdamW.
        param_groups: dicts with "params" (names or parameters) and options of their own;
        parameters in
            no group form one more, with the defaults.

    Updates equal torch.optim.AdamW's on the whole parameters, in any layout. step() brings updated
    slices
    to all ranks that hold them, so it is collective. A parameter without gradient on every rank is
    left
    alone. A gradient that is not finite on any rank skips the step on all: see skipped_steps.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        param_groups: Iterable[dict[str, Any]] = (),
    ) -> None:
        self._handle = handle_of(model)
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)
        self._core: _core.AdamW | None = None
        groups = _groups(self._handle, param_groups)
        super().__init__(groups, defaults)
        for group in self.param_groups:
            _core_group(group)  # bad values raise here
        name_of = {id(p): n for n, p in self._handle.names.items()}
        group_of = {name_of[id(p)]: i for i, g in enumerate(self.param_groups) for p in g["params"]}
        self._core = _core.AdamW(
            self._handle.core, [_core_group(g) for g in self.param_groups], group_of
        )

    @property
    def skipped_steps(self) -> int:
        """Steps that a gradient which was not finite has skipped so far."""
        return self._core.skipped_steps

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while the optimizer is made: groups are fixed afterwards."""
        if self._core is not None:
            raise LinsValueError(
                "param_groups are fixed once the optimizer exists: pass them to it"
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, and an unfinished accumulation."""
        self._handle.core.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters. Collective. Without gradients nothing changes."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._core.step([_core_group(g) for g in self.param_groups]):
            _log.warning(
                "step skipped on every rank: a gradient is not finite (%d so far)",
                self.skipped_steps,
            )
        self._handle.updates.started()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Not supported: the state is spread over ranks."""
        raise LinsRuntimeError(
            "the optimizer's state is spread over the ranks: lins.states(model) shows it"
        )


def _core_group(group: dict[str, Any]) -> _core.AdamWGroup:
    g = _core.AdamWGroup()
    beta1, beta2 = group["betas"]
    for name, value, legal in (
        ("lr", float(group["lr"]), lambda x: x >= 0),
        ("eps", float(group["eps"]), lambda x: x >= 0),
        ("weight_decay", float(group["weight_decay"]), lambda x: x >= 0),
        ("beta1", float(beta1), lambda x: 0 <= x < 1),
        ("beta2", float(beta2), lambda x: 0 <= x < 1),
    ):
        if not legal(value):
            want = "0 <= beta < 1" if name.startswith("beta") else f"{name} >= 0"
            raise LinsValueError(f"{name}={value}: legal is {want}")
        setattr(g, name, value)
    g.maximize = bool(group["maximize"])
    return g


def _groups(handle: Handle, given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups with parameters in place of names, and one more for the rest."""
    taken: set[int] = set()
    groups = []
    for group in given:
        params = group["params"]
        params = [params] if isinstance(params, str | torch.Tensor) else list(params)
        resolved = []
        for p in params:
            if isinstance(p, str):
                if p not in handle.names:
                    raise LinsValueError(
                        f"no parameter {p!r}: the model has {', '.join(handle.names)}"
                    )
                p = handle.names[p]
            elif id(p) not in handle.unit_of:
                raise LinsValueError(
                    f"a parameter of shape {tuple(p.shape)} in param_groups is not the model's"
                )
            if id(p) in taken:
                raise LinsValueError(
                    f"a parameter of shape {tuple(p.shape)} is in two param_groups"
                )
            taken.add(id(p))
            if p.requires_grad:
                resolved.append(p)
        groups.append({**group, "params": resolved})
    rest = [p for p in handle.names.values() if p.requires_grad and id(p) not in taken]
    if rest or not groups:
        groups.append({"params": rest})
    return groups


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scales all gradients of a step so that their global norm is at most max_norm.

    Returns the norm before, as a float tensor: over all parameters, each element counted once
    however many
    ranks hold it. norm_type: 1, 2 or inf. One small reduction over all ranks, which step() uses
    again.
    """
    if not max_norm >= 0 or math.isnan(norm_type):
        raise LinsValueError(
            f"max_norm={max_norm}, norm_type={norm_type}: legal are max_norm >= 0 and 1, 2, inf"
        )
    return torch.tensor(handle_of(model).core.clip_grad_norm(float(max_norm), float(norm_type)))
