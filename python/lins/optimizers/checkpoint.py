"""state_dict and load_state_dict of sharded optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lins._core import DTensor
from lins.errors import LinsValueError
from lins.state_dict import part_like

if TYPE_CHECKING:
    from lins.optimizers.base import ShardedOptimizer

Records = list[tuple[str, Any, dict[str, Any]]]


def pack(optimizer: ShardedOptimizer, records: Records) -> dict[str, Any]:
    """The state_dict of an optimizer with these records, hooks included."""
    for hook in optimizer._optimizer_state_dict_pre_hooks.values():
        hook(optimizer)
    by_name = {name: (updates, states) for name, updates, states in records}
    state: dict[int, dict[str, Any]] = {}
    groups = []
    index = 0
    for group in optimizer.param_groups:
        names = [optimizer._handle.name_of[id(p)] for p in group["params"]]
        packed = {k: v for k, v in group.items() if k != "params"}
        packed["params"] = list(range(index, index + len(names)))
        packed["param_names"] = names
        groups.append(packed)
        for i, name in enumerate(names, index):
            updates, states = by_name[name]
            if updates is None:
                if states:
                    state[i] = dict(states)
            elif updates > 0:
                state[i] = {"step": torch.tensor(float(updates)), **states}
        index += len(names)
    result: dict[str, Any] = {"state": state, "param_groups": groups}
    for hook in optimizer._optimizer_state_dict_post_hooks.values():
        changed = hook(optimizer, result)
        if changed is not None:
            result = changed
    return result


def gather(state_dict: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Whole tensors in place of DTensors. Collective, on the device; one state is there at once."""

    def whole(x: Any) -> Any:
        if isinstance(x, DTensor):
            part = x.to_local()
            if part.device != device:  # offloaded
                moved = DTensor.from_local(part.to(device), x.mesh, x.layout, tuple(x.shape))
                return moved.full_tensor().to(part.device)
            x = x.full_tensor()
        return x.clone() if isinstance(x, torch.Tensor) else x

    state = {i: {k: whole(v) for k, v in entry.items()} for i, entry in state_dict["state"].items()}
    return {**state_dict, "state": state}


def load(optimizer: ShardedOptimizer, state_dict: dict[str, Any]) -> None:
    """Checks all of a state_dict, then hands it to the optimizer."""
    given = dict(state_dict)
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = hook(optimizer, given)
        if changed is not None:
            given = changed
    groups = given.get("param_groups")
    state = given.get("state")
    if groups is None or state is None:
        raise LinsValueError(
            f"a state_dict has 'state' and 'param_groups', this one {sorted(given)}"
        )
    problems = _compare_groups(optimizer, groups)
    if problems:
        raise LinsValueError("the state_dict is of other parameters: " + "; ".join(problems))
    merged = []
    name_of: dict[int, str] = {}
    for mine, theirs in zip(optimizer.param_groups, groups, strict=True):
        options = {k: v for k, v in theirs.items() if k not in ("params", "param_names")}
        merged.append({**mine, **options, "params": mine["params"]})
        for i, p in zip(theirs["params"], mine["params"], strict=True):
            name_of[i] = optimizer._handle.name_of[id(p)]
    optimizer._all_options(merged)  # bad values raise here
    unknown = sorted(set(state) - set(name_of), key=str)
    if unknown:
        raise LinsValueError(f"state of parameters that are in no group: {unknown}")
    expected = {name: states for name, _, states in optimizer._records()}
    problems = []
    records: Records = []
    for i, entry in state.items():
        records.append(_record(optimizer, name_of[i], entry, expected[name_of[i]], problems))
    if problems:
        raise LinsValueError("the state_dict does not fit: " + "; ".join(problems))
    optimizer._load_records(records)
    for mine, new in zip(optimizer.param_groups, merged, strict=True):
        mine.update(new)
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _compare_groups(optimizer: ShardedOptimizer, groups: list[dict[str, Any]]) -> list[str]:
    mine = optimizer.param_groups
    if len(groups) != len(mine):
        return [f"it has {len(groups)} param_groups, the optimizer {len(mine)}"]
    problems = []
    for g, (a, b) in enumerate(zip(mine, groups, strict=True)):
        names = [optimizer._handle.name_of[id(p)] for p in a["params"]]
        if len(b["params"]) != len(names):
            problems.append(
                f"group {g} has {len(b['params'])} parameters, the optimizer's {len(names)}"
            )
        elif b.get("param_names", names) != names:
            gone = sorted(set(b["param_names"]) - set(names))
            new = sorted(set(names) - set(b["param_names"]))
            problems.append(
                f"group {g}: "
                + (f"it has {gone}, the optimizer {new}" if gone or new else "in another order")
            )
    return problems


def _record(
    optimizer: ShardedOptimizer,
    name: str,
    entry: dict[str, Any],
    expected: dict[str, Any],
    problems: list[str],
) -> tuple[str, Any, dict[str, Any]]:
    """One parameter's entry as this rank's parts; what is wrong is added to problems."""
    states = {k: v for k, v in entry.items() if k != "step" and v is not None}
    if optimizer._fixed_states:
        missing = sorted(set(expected) - set(states)) if states else []
        unexpected = sorted(set(states) - set(expected))
        if missing:
            problems.append(f"'{name}' lacks {missing}")
        if unexpected:
            problems.append(f"'{name}' has {unexpected}, legal are {sorted(expected)}")
    parts = {}
    for key, value in states.items():
        like = optimizer._like(name, value, expected.get(key))
        if like is None:
            parts[key] = value
            continue
        part = _part(value, like)
        if isinstance(part, str):
            problems.append(f"'{name}' {key}: {part}")
        else:
            parts[key] = part
    step = entry.get("step", 1 if states else 0)
    return name, int(step) if optimizer._fixed_states else entry.get("step"), parts


def _part(value: Any, like: DTensor) -> torch.Tensor | str:
    """This rank's part of a state that is like another; or what is wrong with it."""
    shape = tuple(like.shape)
    if isinstance(value, DTensor):
        if tuple(value.shape) != shape:
            return f"shape {tuple(value.shape)}, here {shape}"
        if value.layout != like.layout:
            return (
                f"layout {value.layout}, here {like.layout}: redistribute it, or load "
                "full_state_dict()"
            )
        return value.to_local()
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} is no tensor"
    if tuple(value.shape) != shape:
        return f"a tensor of shape {tuple(value.shape)}, the whole is {shape}"
    return part_like(value, like)
