"""What a user may say about placements: strings, presets, or a Policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lins import _planning
from lins.errors import LinsValueError


@dataclass(frozen=True)
class Policy:
    """Fixed factors for the three states: GPUs per node x nodes, fastest axis first.

    Policy(param=(4, 1), grad=(4, 1), optim=(8, 1)) is the policy "P=4x1 G=4x1 OS=8x1".
    """

    param: Sequence[int] | int
    grad: Sequence[int] | int
    optim: Sequence[int] | int
    family: str = "planned"

    def __str__(self) -> str:
        def text(f: Sequence[int] | int) -> str:
            return str(f) if isinstance(f, int) else "x".join(str(n) for n in f)

        return f"P={text(self.param)} G={text(self.grad)} OS={text(self.optim)}"


@dataclass(frozen=True)
class Resolved:
    """What a policy means for a model on a mesh."""

    placements: list[_planning.Placement]  # one for each unit
    profile: _planning.Profile | None = None  # that chooses among redistributions
    prefetch: int = 1  # what the plan counts on

    def __str__(self) -> str:
        prices = f", prices of {self.profile.name}" if self.profile is not None else ""
        return ", ".join(map(repr, self.placements)) + prices


def resolve(
    policy: object, mesh: _planning.Mesh, family: str, units: Sequence[str] = ("",)
) -> Resolved:
    """The placements that a policy means for units on a mesh; "" is the root.

    Raises LinsError with what is legal.
    """
    if isinstance(policy, Policy | _planning.Plan):
        family = policy.family
    if family != "planned":
        raise LinsValueError(
            f"family {family!r} cannot be executed: legal is 'planned' (the paper's bucketed "
            "all-reduce and broadcasts are not)"
        )
    if isinstance(policy, _planning.Plan):
        return _resolve_plan(policy, mesh, units)
    if not isinstance(policy, str | Policy):
        raise LinsValueError(
            f"policy {policy!r} of type {type(policy).__name__}: legal are a preset or factors as "
            "a string ('zero3', 'P=1 G=4x1 OS=8x1'), a lins.Plan, or lins.Policy(param=, grad=, "
            "optim=)"
        )
    return Resolved([_planning.Placement(str(policy), mesh)] * len(units))


def _resolve_plan(plan: _planning.Plan, mesh: _planning.Mesh, units: Sequence[str]) -> Resolved:
    if tuple(plan.mesh.shape) != tuple(mesh.shape):
        raise LinsValueError(
            f"{plan!r} places states over {plan.mesh!r}, and the ranks are {mesh!r}: solve for "
            "this many nodes and GPUs"
        )
    policies = dict(plan.policies)
    shared = set(policies.values())

    def of(unit: str) -> str:
        if len(shared) == 1:
            return next(iter(shared))
        name = unit or "root"
        # A plan names units alike once, without their numbers: layers for layers.0, layers.1, ...
        for known in (name, name.rpartition(".")[0]):
            if known in policies:
                return policies[known]
        raise LinsValueError(
            f"the plan has no choice for unit {name!r}: it has {', '.join(policies)}; make it from "
            "lins.describe(model), or solve with uniform=True"
        )

    placements = [_planning.Placement(of(u), mesh) for u in units]
    return Resolved(placements, plan.cluster.profile, plan.prefetch)
