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


def resolve(policy: object, mesh: _planning.Mesh, family: str) -> _planning.Placement:
    """The placement that a policy means on a mesh. Raises LinsError with what is legal."""
    if isinstance(policy, Policy):
        family = policy.family
    if family != "planned":
        raise LinsValueError(
            f"family {family!r} cannot be executed: legal is 'planned' (the paper's bucketed "
            "all-reduce and broadcasts are not)"
        )
    if not isinstance(policy, str | Policy):
        raise LinsValueError(
            f"policy {policy!r} of type {type(policy).__name__}: legal are a preset or factors as "
            "a string ('zero3', 'P=1 G=4x1 OS=8x1'), or lins.Policy(param=, grad=, optim=)"
        )
    return _planning.Placement(str(policy), mesh)
