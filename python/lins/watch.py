"""lins.Watch: whether collectives still take what the profile says."""

from __future__ import annotations

import statistics
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from lins import _core, _planning
from lins.drift import Drift, DriftReport
from lins.errors import LinsValueError
from lins.profiling.settings import DTYPES
from lins.sharding import handle_of
from lins.tracing import TraceRecord

_ROLES = ("gather", "reduce", "update")  # what a plan prices; agreements are not in it
_FALLBACKS = ("zero1", "zero2", "zero3")  # from the most memory to the least


class _Key(NamedTuple):
    role: str
    op: str
    axes: str
    bytes: int


class _Seen:
    """What is known of one kind of collective."""

    def __init__(self, key: _Key, mesh: _planning.Mesh, group: Sequence[int], window: int) -> None:
        per_node = mesh.shape[-1]
        self.op = "all_to_all" if key.op in ("permute", "exchange") else key.op
        self.gpus = len({r % per_node for r in group})
        self.nodes = len({r // per_node for r in group})
        self.samples: deque[float] = deque(maxlen=window)
        self.ratio: float | None = None  # of the last check, the worst group
        self.beyond = 0  # so many checks in a row
        self.since: int | None = None  # step of the first of them


class Watch:
    """Compares collectives with a profile while training goes on.

        watch = lins.Watch(plan, model)
        for batch in batches:
            ...
            opt.step()
            if watch.step():            # every rank; what has newly drifted
                print(watch.report(), "switch to", watch.fallback)

    Args:
        plan: a lins.Plan, whose profile counts, or a Profile, its name or its path.
        model: from lins_shard, or its live mesh.
        factor: a collective has drifted when the median of its last `window` samples is more than
            this many times the profile's time for the same operation, mesh and bytes, or less
            than its reciprocal...
        patience: ...in so many checks one after another.
        window: samples of a median. Nothing is said before there are as many.
        every: steps between checks.
        source: "trace", the collectives of training itself; "sample", a short measurement of each
            kind that training uses, between two steps. Default: "trace", and over NCCL, whose
            operations end unseen by the host, "sample".
        probe_seconds: the time of one such measurement.
        callback: called on every rank with what has newly drifted.

    A sample is the time of the rank of a group that waited least, for the others also wait for
    late ranks; of several groups the slowest counts. Beside compute, and beside each other,
    collectives take longer than a profile's: choose `factor` accordingly, or source="sample".

    step() is collective at a check: two small reductions over all ranks, and one per kind of
    collective. Ranks decide alike. Only the window is kept.
    """

    def __init__(
        self,
        plan: _planning.Plan | _planning.Profile | str | PathLike[str],
        model: nn.Module | _core.LiveMesh,
        *,
        factor: float = 2.0,
        window: int = 20,
        patience: int = 3,
        every: int = 10,
        source: str | None = None,
        probe_seconds: float = 0.02,
        callback: Callable[[list[Drift]], Any] | None = None,
    ) -> None:
        self._plan = plan if isinstance(plan, _planning.Plan) else None
        self.profile = plan.cluster.profile if self._plan else _planning.Profile.load(plan)
        self._mesh = model if isinstance(model, _core.LiveMesh) else handle_of(model).core.mesh
        on_gpu = self._mesh.backend == "nccl"
        self._source = source or ("sample" if on_gpu else "trace")
        _check(factor, window, patience, every, self._source, on_gpu)
        per_node = self._mesh.shape[-1]
        # A mesh that the profile says nothing of is an error here, and not after hours.
        self.profile.time("all_gather", 1, gpus=per_node, nodes=self._mesh.size // per_node)
        self.factor, self.window, self.patience, self.every = factor, window, patience, every
        self._probe_seconds, self._callback = probe_seconds, callback
        self._device = "cuda" if on_gpu else "cpu"
        self._dtype = DTYPES.get(self.profile.environment.get("dtype", ""))
        self._seen: dict[_Key, _Seen] = {}
        self._drifted: set[_Key] = set()
        self._steps = self._checks = self._skipped = 0
        self._context = _core.RankContext.current()
        self._trace: int | None = self._context.start_trace()

    def step(self) -> list[Drift]:
        """To be called by every rank after each step; what has newly drifted. Collective.

        The first step only warms up: communicators are made in it.
        """
        if self._trace is None:
            raise LinsValueError("this watch is closed")
        self._steps += 1
        if self._steps == 1:
            self._records()
        elif self._steps % self.every == 0 and self._mesh.size > 1:
            return self._check()
        return []

    def report(self) -> DriftReport:
        """What was seen of every kind of collective so far, beside the profile. No communication.

        The same on every rank.
        """
        rows = [self._drift(key) for key, s in sorted(self._seen.items()) if s.ratio is not None]
        return DriftReport(
            rows=rows,
            profile=self.profile.name,
            factor=self.factor,
            steps=self._steps,
            checks=self._checks,
            skipped=self._skipped,
            fallback=self.fallback if any(r.drifted for r in rows) else None,
        )

    @property
    def drifted(self) -> list[Drift]:
        """What is beyond the factor now, and has been for long enough."""
        return [self._drift(key) for key in sorted(self._drifted)]

    @property
    def fallback(self) -> str:
        """The conservative policy to switch to when the plan's assumptions no longer hold.

        The first of zero1, zero2 and zero3 that fits the plan's memory; zero3 without a plan. The
        switch is a checkpoint that is saved under one policy and loaded under the other.
        """
        if self._plan is not None:
            for name in _FALLBACKS:
                if self._plan.what_if(policy=name).fits:
                    return name
        return _FALLBACKS[-1]

    def close(self) -> None:
        """Ends watching; what was seen stays."""
        if self._trace is not None:
            self._context.stop_trace(self._trace)
            self._trace = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _records(self) -> list[TraceRecord]:
        """What ended since the last call; nothing older is kept.

        What is still in flight is waited for: else ranks would count differently.
        """
        deadline = time.monotonic() + self._mesh.world.timeout
        while True:
            self._context.quiesce()  # updates may still travel, and belong to this step
            records = self._context.trace(self._trace, TraceRecord)
            if all(r.end > 0 for r in records) or time.monotonic() > deadline:
                break
            time.sleep(1e-3)
        self._context.stop_trace(self._trace)
        self._trace = self._context.start_trace()
        return [r for r in records if r.role in _ROLES and r.axes and r.end > 0 and r.bytes]

    def _check(self) -> list[Drift]:
        self._checks += 1
        fresh: dict[_Key, list[float]] = {}
        for r in self._records():
            key = _Key(r.role, r.op, r.axes, r.bytes)
            if key not in self._seen:
                self._seen[key] = _Seen(key, self._mesh, r.group, self.window)
            fresh.setdefault(key, []).append(r.end - r.start)
        keys = sorted(fresh)
        if not self._alike([(k, len(fresh[k])) for k in keys]):
            self._skipped += 1  # ranks did not do the same: nothing to compare
            return []
        self._context.stop_trace(self._trace)  # what follows is no training
        try:
            for key in keys:
                self._seen[key].samples.extend(self._times(key, fresh[key]))
            self._compare([k for k in keys if len(self._seen[k].samples) == self.window])
        finally:
            self._trace = self._context.start_trace()
        return self._decide()

    def _times(self, key: _Key, durations: list[float]) -> list[float]:
        if self._source == "trace":
            return self._reduce(durations[-self.window :], "min", key.axes)
        s = self._seen[key]
        point, _ = _core.measure_collective(
            self._mesh, s.op, s.gpus, s.nodes, key.bytes, self._probe_seconds, self._dtype
        )
        return [point["median"]] * self.window  # a median of many already

    def _alike(self, value: object) -> bool:
        number = float(zlib.crc32(repr(value).encode()))
        everywhere = ",".join(self._mesh.axes)
        low, high = self._reduce([number, -number], "min", everywhere)
        return low == -high

    def _compare(self, keys: list[_Key]) -> None:
        if not keys:
            return
        medians = [statistics.median(self._seen[k].samples) for k in keys]
        slowest = self._reduce(medians, "max", ",".join(self._mesh.axes))
        for key, seconds in zip(keys, slowest, strict=True):
            s = self._seen[key]
            s.ratio = seconds / self._expected(key).seconds
            if 1 / self.factor <= s.ratio <= self.factor:
                s.beyond, s.since = 0, None
            else:
                s.since = s.since if s.beyond else self._steps
                s.beyond += 1

    def _decide(self) -> list[Drift]:
        now = {k for k, s in self._seen.items() if s.beyond >= self.patience}
        new = [self._drift(k) for k in sorted(now - self._drifted)]
        self._drifted = now
        if new and self._callback is not None:
            self._callback(new)
        return new

    def _expected(self, key: _Key) -> _planning.Estimate:
        s = self._seen[key]
        return self.profile.estimate(s.op, key.bytes, gpus=s.gpus, nodes=s.nodes)

    def _drift(self, key: _Key) -> Drift:
        s = self._seen[key]
        expected = self._expected(key)
        return Drift(
            role=key.role,
            op=key.op,
            axes=key.axes,
            gpus=s.gpus,
            nodes=s.nodes,
            bytes=key.bytes,
            expected=expected.seconds,
            extrapolated=expected.extrapolated,
            measured=expected.seconds * (s.ratio or 0.0),
            ratio=s.ratio or 0.0,
            checks=s.beyond,
            since=s.since,
            drifted=s.beyond >= self.patience,
        )

    def _reduce(self, values: list[float], op: str, axes: str) -> list[float]:
        local = torch.tensor(values, dtype=torch.float64, device=self._device)
        layout = f"+{op}({axes})"
        whole = _core.DTensor.from_local(local, self._mesh, layout, shape=tuple(local.shape))
        return whole.redistribute("R").to_local().tolist()


def _check(
    factor: float, window: int, patience: int, every: int, source: str, on_gpu: bool
) -> None:
    if not factor > 1:
        raise LinsValueError(f"factor is {factor}, must be more than 1")
    for name, value in (("window", window), ("patience", patience), ("every", every)):
        if value < 1:
            raise LinsValueError(f"{name} is {value}, must be at least 1")
    if source not in ("trace", "sample"):
        raise LinsValueError(f"source={source!r}: legal are 'trace' and 'sample'")
    if source == "trace" and on_gpu:
        raise LinsValueError(
            "source='trace': over NCCL operations end unseen by the host; legal is 'sample'"
        )
