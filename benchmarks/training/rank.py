"""What each process of the benchmark does: one run of all candidates, in interleaved rounds."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import lins
import torch
import torch.distributed as dist
from lins.processes import serve

from training.candidates import Step, lins_step, torch_candidates
from training.cluster import sent_bytes
from training.model import tokens
from training.predict import Policy, measured_spec, node_bytes, optimizer_seconds
from training.report import seconds
from training.settings import PRESETS, Settings

_KEEP = "P=2x2 G=2x2 OS=2x2 between=1x1"
_QUIET = 0.03  # seconds without a byte sent: nothing is under way


class Race:
    """Candidates by name, their steps so far, and what was measured of them on this rank."""

    def __init__(self, s: Settings, rank: int) -> None:
        self._s, self._rank = s, rank
        self.steps: dict[str, Step] = {}
        self.losses: dict[str, list[float]] = {}
        self.seconds: dict[str, list[float]] = {}
        self.processor: dict[str, list[float]] = {}  # seconds of all threads, of a step
        self.sent: dict[str, list[float]] = {}
        node = rank // s.per_node
        self._device = s.interfaces[node] if s.interfaces else None

    def add(self, name: str, step: Step) -> None:
        """A candidate that takes part from now on."""
        self.steps[name] = step
        for kept in (self.losses, self.seconds, self.processor, self.sent):
            kept[name] = []

    def turn(self, name: str, counted: bool = True) -> None:
        """Some steps of one candidate: a few to get going, then those timed together."""
        s = self._s
        self._settle()
        before, busy = self._sent(), time.process_time()
        for _ in range(s.warm):
            self._step(name)
        begin = time.perf_counter()
        for _ in range(s.steps):
            self._step(name)
        took = (time.perf_counter() - begin) / s.steps
        busy = time.process_time() - busy
        self._settle()
        if counted:
            self.seconds[name].append(took)
            self.processor[name].append(busy / (s.warm + s.steps))
            self.sent[name].append((self._sent() - before) / (s.warm + s.steps))

    def _step(self, name: str) -> None:
        done = len(self.losses[name])
        batches = [tokens(self._s.shape, done, m, self._rank) for m in range(self._s.micro_batches)]
        self.losses[name].append(self.steps[name](batches))

    def _sent(self) -> int:
        return sent_bytes(self._device) if self._device else 0

    def _settle(self) -> None:
        """Waits until no rank computes and no byte is under way between nodes."""
        dist.barrier()
        while True:
            before = self._sent()
            time.sleep(_QUIET)
            # A barrier's own bytes are some thousands at most, and none comes now.
            if self._sent() == before:
                return


def run(s: Settings) -> dict[str, Any] | None:
    """One run; the measurements of all ranks, on rank 0 only."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = lins.init_mesh((s.nodes, s.per_node), ("node", "gpu"), timeout=120.0)
    spec = measured_spec(s, rank)
    policy = Policy(s, spec, optimizer_seconds(s))
    plan = policy.solve()
    keep = {"lins zero3 keep": _KEEP}
    placements: dict[str, object] = {f"lins {p}": p for p in PRESETS} | keep
    known = [str(p) for p in placements.values()]
    solved = {"lins solved": plan}
    for text in policy.neighbours(plan, known, s.neighbours):
        solved[f"lins {text}"] = text
    race = Race(s, rank)
    notes: list[str] = []
    for name, make in torch_candidates(s).items():
        if not s.only or name in s.only or name == "alone":
            race.add(name, make())
    models: dict[str, torch.nn.Module] = {}
    seen: dict[str, str] = {}
    for name, placement in (placements | solved).items():
        if s.only and name in placements and name not in s.only:
            continue
        step, model = lins_step(s, mesh, placement)
        layouts = repr([_units(model)])
        if layouts in seen and name != "lins solved":
            notes.append(f"{name} is {seen[layouts]}: one of them runs")
            del step, model
            gc.collect()
            continue
        seen.setdefault(layouts, name)
        race.add(name, step)
        models[name] = model
    names = list(race.steps)
    gc.collect()
    gc.freeze()
    for turn in range(-s.warm_rounds, s.rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order:
            race.turn(name, counted=turn >= 0)
        if rank == 0:
            print(f"round {turn + 1} of {s.rounds}", file=sys.stderr, flush=True)
    mine = {
        "seconds": race.seconds,
        "processor": race.processor,
        "losses": race.losses,
        "sent": race.sent,
    }
    everyone: list[Any] = [None] * mesh.size
    dist.all_gather_object(everyone, mine)
    if rank != 0:
        return None
    measured = {"settings": s.to_dict(), "ranks": everyone}
    policy.calibrate(statistics.median(seconds(measured, "alone")))
    texts = {n: str(p) for n, p in (placements | solved).items()}
    texts["lins solved"] = next(iter(plan.policies.values()))
    return {
        **measured,
        "predictions": {
            name: _prediction(policy, texts[name], model, mesh, s.micro_batches)
            for name, model in models.items()
        },
        "compute_seconds": {"before": plan.cost["compute"], "optimizer": policy.optimizer},
        "cap_bytes": policy.cap_bytes,
        "solved": str(plan),
        "notes": notes,
        "load": os.getloadavg()[0],
    }


def _prediction(
    policy: Policy, text: str, model: torch.nn.Module, mesh: lins.Mesh, micro_batches: int
) -> dict[str, Any]:
    """What is known beforehand of a placement."""
    plan = policy.price(text)
    return {
        "factors": {k: list(v) for k, v in plan.factors.items()},
        "seconds": policy.seconds(plan),
        "cost": dict(plan.cost),
        "memory_bytes": plan.memory["total"],
        "fits": plan.memory["total"] <= policy.cap_bytes,
        "node_bytes": node_bytes(model, mesh, micro_batches),
        "extrapolated": dict(plan.extrapolated),
        "steps": _units(model)[-1],
    }


def _units(model: torch.nn.Module) -> list[dict[str, list[str]]]:
    """The collectives of each unit, by moment."""
    moments = ("gather", "regather", "accumulate", "reduce", "update")
    return [
        {
            m: [f"{x.kind}({x.axes}) {x.bytes}" for x in getattr(plan, m).steps if x.axes]
            for m in moments
        }
        for _, plan, _ in lins.sharding.handle_of(model).core.plans()
    ]


def main() -> None:
    """A rank, started by the launcher."""
    serve(Path(sys.argv[1]), lambda values: run(Settings.from_dict(values)))
    sys.stdout.flush()
    sys.stderr.flush()
    # Groups of Gloo that are dropped under Python's lock can wait for it for ever: leave them.
    os._exit(0)


if __name__ == "__main__":
    main()
