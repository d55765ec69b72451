"""Parameter groups: by names or parameters, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from lins.errors import LinsValueError
from lins.sharding import Handle

ParamGroups = Iterable[dict[str, Any]]


def resolve_groups(handle: Handle, given: ParamGroups) -> list[dict[str, Any]]:
    """The groups with parameters in place of names and modules, and one more for the rest."""
    taken: set[int] = set()
    groups = []
    for group in given:
        if not isinstance(group, dict) or "params" not in group:
            raise LinsValueError(f"param_groups are dicts with 'params', not {group!r}")
        resolved = []
        for p in _parameters(handle, group["params"]):
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


def _parameters(handle: Handle, given: Any) -> list[nn.Parameter]:
    out = []
    for p in [given] if isinstance(given, str | torch.Tensor | nn.Module) else given:
        if isinstance(p, str):
            if p not in handle.names:
                raise LinsValueError(f"no parameter {p!r}: the model has {', '.join(handle.names)}")
            out.append(handle.names[p])
            continue
        for q in p.parameters() if isinstance(p, nn.Module) else [p]:
            if id(q) not in handle.unit_of:
                raise LinsValueError(
                    f"a parameter of shape {tuple(q.shape)} in param_groups is not the model's"
                )
            out.append(q)
    return out


Legal = tuple[str, Callable[[float], bool]]
NOT_NEGATIVE: Legal = (">= 0", lambda x: x >= 0)
BETA: Legal = ("in [0, 1)", lambda x: 0 <= x < 1)
POSITIVE: Legal = ("> 0", lambda x: x > 0)


def number(name: str, value: Any, legal: Legal | None = None) -> float:
    """The value as a float, a tensor of one element too. Raises LinsError when it is not legal."""
    try:
        x = float(value)
    except (TypeError, ValueError, RuntimeError) as e:
        raise LinsValueError(f"{name}={value!r} is no number") from e
    if x != x or (legal and not legal[1](x)):
        raise LinsValueError(f"{name}={x}: legal is {name} {legal[0] if legal else 'a number'}")
    return x


def pair(name: str, value: Any) -> tuple[Any, Any]:
    """The two values of betas and the like."""
    try:
        first, second = value
    except (TypeError, ValueError) as e:
        raise LinsValueError(f"{name}={value!r} must be two numbers") from e
    return first, second


Options = TypeVar("Options")


def options_of(
    group: dict[str, Any],
    options: Options,
    numbers: dict[str, Legal | None],
    flags: Sequence[str] = ("maximize",),
    betas: Sequence[str] = (),
) -> Options:
    """The core's options with what a group says.

    numbers: by name, with what is legal. flags: true or false. betas: names of pairs that the core
    has as two, adamw_betas as adamw_beta1 and adamw_beta2. Raises LinsError for the first value
    that is not legal, in this order.
    """
    for name, legal in numbers.items():
        setattr(options, name, number(name, group[name], legal))
    for name in betas:
        for i, value in enumerate(pair(name, group[name]), 1):
            beta = f"{name[:-1]}{i}"
            setattr(options, beta, number(beta, value, BETA))
    for name in flags:
        setattr(options, name, bool(group[name]))
    return options
