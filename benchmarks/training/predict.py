"""What the policy says beforehand: step times, bytes between nodes, memory, the solved plan."""

from __future__ import annotations

import statistics
import time
from typing import Any

import lins
import torch
import torch.distributed as dist
from lins import _planning
from lins.sharding import handle_of

from training.model import Llama, build, tokens
from training.settings import Settings

_STATES = {"param": 4, "grad": 4, "master": 0, "moments": 8}  # fp32 throughout, AdamW


def measured_spec(s: Settings, rank: int) -> lins.ModelSpec:
    """The model as planning sees it, with the mean compute of all ranks at once. Collective."""
    dist.barrier()
    spec = lins.describe(
        build(s.shape),
        tokens(s.shape, 0, 0, rank),
        seq_len=s.shape.seq_len,
        micro_batch=s.shape.rows,
        state_bytes=_STATES,
        measure=True,
    )
    mine = {u.name: (u.forward_seconds, u.backward_seconds) for u in spec.units}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    means = {
        u.name: tuple(statistics.fmean(x) for x in zip(*(r[u.name] for r in everyone), strict=True))
        for u in spec.units
    }
    return _with_seconds(spec, means)


def _with_seconds(spec: lins.ModelSpec, seconds: dict[str, tuple[float, ...]]) -> lins.ModelSpec:
    """The same model with other (forward, backward) seconds of its units."""
    units = [
        lins.Unit(
            u.name,
            parameters=u.parameters,
            repeat=u.repeat,
            forward_flops=u.forward_flops,
            activation_bytes=u.activation_bytes,
            boundary_bytes=u.boundary_bytes,
            forward_seconds=seconds[u.name][0],
            backward_seconds=seconds[u.name][1],
        )
        for u in spec.units
    ]
    return lins.ModelSpec(
        units=units,
        seq_len=spec.seq_len,
        micro_batch=spec.micro_batch,
        name=spec.name,
        state_bytes=_STATES,
    )


def optimizer_seconds(s: Settings) -> float:
    """Of one rank that updates all parameters, while all ranks do. Collective."""
    model = build(s.shape)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    times = []
    for _ in range(6):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    mine = statistics.median(times[1:])
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return statistics.fmean(everyone)


class Policy:
    """The problem of one run, priced by its profile."""

    def __init__(self, s: Settings, spec: lins.ModelSpec, optimizer: float) -> None:
        self._s = s
        self.spec = spec
        self.optimizer = optimizer
        self.cluster = lins.Cluster(
            nodes=s.nodes,
            gpus_per_node=s.per_node,
            memory_bytes=64 * 2**30,
            profile=s.profile,
        )
        # Gloo's own buffers are few; what is capped is what plans differ in.
        self._settings = {"micro_batches": s.micro_batches, "communicator_bytes": 0}
        self.cap_bytes = int(s.cap * self.price("ddp").memory["total"])

    def calibrate(self, alone: float) -> None:
        """Takes `alone`, seconds of a step without communication, for what compute takes.

        Other work on the machine changes that from minute to minute, so predictions rest on what
        the same rounds measured.
        """
        before = self.price("ddp").cost["compute"] + self.optimizer
        factor = alone / before
        self.optimizer *= factor
        self.spec = _with_seconds(
            self.spec,
            {
                u.name: (factor * u.forward_seconds, factor * u.backward_seconds)
                for u in self.spec.units
            },
        )

    def price(self, policy: str) -> lins.Plan:
        """Of one placement of all units."""
        return lins.Plan.uniform(self.spec, self.cluster, policy=policy, **self._settings)

    def solve(self) -> lins.Plan:
        """The fastest plan under the cap, exact."""
        return lins.solve(
            self.spec, self.cluster, cap_bytes=self.cap_bytes, tie_epsilon=0.0, **self._settings
        )

    def neighbours(self, plan: lins.Plan, known: list[str], count: int) -> list[str]:
        """The next best placements of all units that fit, and are not among those known."""
        taken = {_factors(self.price(p)) for p in known} | {_factors(plan)}
        priced = []
        for p, g, o in lins.legal_plans(self._s.per_node, self._s.nodes):
            text = f"P={_text(p)} G={_text(g)} OS={_text(o)}"
            priced.append((self.price(text), text))
        fit = [
            (self.seconds(x), text)
            for x, text in priced
            if x.memory["total"] <= self.cap_bytes and _factors(x) not in taken
        ]
        return [text for _, text in sorted(fit)[:count]]

    def seconds(self, plan: lins.Plan) -> float:
        """Of a step: what the plan says, and the optimizer's part, which plans leave out."""
        gpus, nodes = plan.factors["optim"]
        return plan.cost["step"] + self.optimizer / (gpus * nodes)


def _factors(plan: lins.Plan) -> tuple:
    return tuple(plan.factors[k] for k in ("param", "grad", "optim"))


def _text(factors: tuple[int, int]) -> str:
    return "x".join(map(str, factors))


# Bytes from which a collective crosses between nodes only as often as needed (comm/by_node.h).
_BY_NODE = 512 * 1024


def node_bytes(model: Llama, mesh: lins.Mesh, micro_batches: int) -> float:
    """Bytes that one node sends to the other in a step, by the plans of a wrapped model's units."""
    total = 0.0
    for _, plan, _ in handle_of(model).core.plans():
        for moment, times in (
            ("gather", micro_batches),
            ("regather", micro_batches),
            ("accumulate", micro_batches),
            ("reduce", 1),
            ("update", 1),
        ):
            for step in getattr(plan, moment).steps:
                if step.axes:
                    total += times * _crossing(step, mesh)
    return total


def _crossing(step: _planning.Step, mesh: lins.Mesh) -> float:
    """Bytes of a step that the first node receives from others.

    What goes straight from its holder to its receiver: of what a rank receives, the part from
    another node is that of its peers there. By node, a node receives each part, or sum, once.
    """
    total = 0.0
    for group in mesh.groups(step.axes):
        nodes = [mesh.coordinate(r)[0] for r in group]
        count, here = len(set(nodes)), nodes.count(0)
        if count == 1 or here == 0:
            continue
        if step.kind in _TIMES and step.bytes >= _BY_NODE:
            total += _TIMES[step.kind] * step.bytes * (count - 1) / count
        else:
            total += here * step.recv_bytes * (len(group) - here) / (len(group) - 1)
    return total


_TIMES = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
