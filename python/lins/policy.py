"""What a user may say about placements: strings, presets, or a Policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lins import _planning
from lins.errors import LinsValueError


@dataclass(frozen=True)
class Policy:
    """Factors for the three states, or the wish to have them solved for when wrapping.

    Policy(param=(4, 1), grad=(4, 1), optim=(8, 1)) is the policy "P=4x1 G=4x1 OS=8x1": GPUs per
    node x nodes, fastest axis first. Without factors lins_shard describes the model, and solves for
    the mesh it is given:

        lins.Policy(objective="comm", cap_bytes=20 * 2**30, micro_batches=4)

    Args:
        param: pieces of P, and so on for grad and optim: all three or none.
        grad: of G.
        optim: of OS.
        family: "planned" or "paper": by which collectives states move.
        objective: as in lins.solve(); "step" needs a sample, for without one nothing is known of
            the compute to hide under. Default: "step" with a sample, else "comm".
        space: as in lins.solve().
        cap_bytes: of one GPU's memory. Default: the device's memory; on a CPU the machine's,
            divided among the node's ranks.
        micro_batches: of one optimizer step.
        profile: of the cluster: lins.Profile, a shipped name or a path. Default: a model of common
            link speeds (lins.Profile.model), which is no measurement.
        sample: what one micro-batch passes to the model, to trace flops and activations.
        uniform: one choice for all units.
        optimizer: whose states the memory must hold, as in lins.describe().
        offload: OS in host memory, as lins_shard(offload_optimizer=True).
    """

    param: Sequence[int] | int | None = None
    grad: Sequence[int] | int | None = None
    optim: Sequence[int] | int | None = None
    family: str = "planned"
    objective: str | None = None
    space: str = "nested"
    cap_bytes: int | None = None
    micro_batches: int = 1
    profile: Any = None
    sample: Any = field(default=None, compare=False)
    uniform: bool = True
    optimizer: str = "adamw"
    offload: bool = False

    def __post_init__(self) -> None:
        given = [f is not None for f in (self.param, self.grad, self.optim)]
        if any(given) and not all(given):
            raise LinsValueError(f"{self!r}: give all of param, grad and optim, or none of them")
        _planning.moment_bytes(self.optimizer)  # raises for an unknown one

    @property
    def fixed(self) -> bool:
        """Whether the factors are given."""
        return self.param is not None

    def __str__(self) -> str:
        def text(f: Sequence[int] | int) -> str:
            return str(f) if isinstance(f, int) else "x".join(str(n) for n in f)

        if not self.fixed:
            offload = ", offload" if self.offload else ""
            objective = self.objective or "any objective"
            return f"solve({objective}, {self.space}, {self.optimizer}{offload})"
        return f"P={text(self.param)} G={text(self.grad)} OS={text(self.optim)}"

    def solve(
        self, spec: _planning.ModelSpec, mesh: _planning.Mesh, memory_bytes: int
    ) -> _planning.Plan:
        """The plan for a model on a mesh of nodes x GPUs of so much memory each."""
        if len(mesh.shape) != 2:
            raise LinsValueError(
                f"{mesh!r} has {len(mesh.shape)} axes: solving knows nodes and GPUs; give factors"
            )
        nodes, gpus = mesh.shape
        profile = self.profile
        if profile is None:
            profile = _planning.Profile.model(nodes=nodes, gpus_per_node=gpus)
        cluster = _planning.Cluster(
            nodes=nodes, gpus_per_node=gpus, memory_bytes=memory_bytes, profile=profile
        )
        return _planning.solve(
            spec,
            cluster,
            micro_batches=self.micro_batches,
            objective=self.objective or ("comm" if self.sample is None else "step"),
            space=self.space,
            family=self.family,
            cap_bytes=self.cap_bytes,
            uniform=self.uniform,
            offload=self.offload,
        )


FAMILIES = ("planned", "paper")
DEFAULT_BUCKET_BYTES = 512 * 2**20  # of family paper's all-reduces
DEFAULT_OFFLOAD_CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Resolved:
    """What a policy means for a model on a mesh."""

    placements: list[_planning.Placement]  # one for each unit
    family: str = "planned"
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    gradient_buckets: int = 2  # contributions of units alive at once
    profile: _planning.Profile | None = None  # that chooses among redistributions
    prefetch: int = 1  # what the plan counts on
    offload: bool = False  # OS in host memory
    offload_chunk_bytes: int = DEFAULT_OFFLOAD_CHUNK_BYTES

    def __str__(self) -> str:
        prices = f", prices of {self.profile.name}" if self.profile is not None else ""
        prices += f", family {self.family}" if self.family != "planned" else ""
        prices += ", offload" if self.offload else ""
        # One choice for all is said once: how many units there are is another matter.
        choices = [repr(p) for p in self.placements]
        return ", ".join(choices[:1] if len(set(choices)) == 1 else choices) + prices


def resolve(
    policy: object, mesh: _planning.Mesh, family: str, units: Sequence[str] = ("",)
) -> Resolved:
    """The placements that a policy means for units on a mesh; "" is the root.

    Raises LinsError with what is legal.
    """
    if isinstance(policy, Policy | _planning.Plan):
        family = policy.family
    if family not in FAMILIES:
        raise LinsValueError(f"family {family!r}: legal are {' and '.join(map(repr, FAMILIES))}")
    if isinstance(policy, _planning.Plan):
        return _resolve_plan(policy, mesh, units)
    if not isinstance(policy, str | Policy):
        raise LinsValueError(
            f"policy {policy!r} of type {type(policy).__name__}: legal are a preset or factors as "
            "a string ('zero3', 'P=1 G=4x1 OS=8x1'), a lins.Plan, or a lins.Policy"
        )
    placements = [_placement(str(policy), mesh, family)] * len(units)
    if policy == "fsdp2":
        # FSDP2's root, needed again as soon as the backward begins, stays whole until then.
        root = _placement(f"{placements[0]!r} between=1", mesh, "planned")
        placements = [root if not name else p for name, p in zip(units, placements, strict=True)]
    return Resolved(placements, family, offload=isinstance(policy, Policy) and policy.offload)


def _placement(text: str, mesh: _planning.Mesh, family: str) -> _planning.Placement:
    """Where states are; the paper's collectives know no G in fewer pieces than P."""
    return _planning.Placement(text, mesh, "nested" if family == "paper" else "full")


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

    placements = [_placement(of(u), mesh, plan.family) for u in units]
    return Resolved(
        placements,
        family=plan.family,
        bucket_bytes=plan.bucket_bytes,
        gradient_buckets=max(1, plan.gradient_buckets),
        profile=plan.cluster.profile,
        prefetch=plan.prefetch,
        offload=plan.offload,
        offload_chunk_bytes=plan.offload_chunk_bytes,
    )
