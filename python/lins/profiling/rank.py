"""What each process of `lins profile` does, started by the launcher or by torchrun."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import lins
from lins import _core, _planning
from lins.errors import LinsRuntimeError
from lins.processes import serve
from lins.profiling.environment import describe
from lins.profiling.nccl_log import NcclLog
from lins.profiling.partial import Key, Partial
from lins.profiling.progress import Reporter
from lins.profiling.settings import DTYPES, Settings

_COMPUTE_BUDGET = 2.0  # seconds
_OPS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")


def measure(s: Settings) -> dict[str, Any] | None:
    """Measures all points that are missing; writes the profile and reports, on rank 0 only."""
    if torch.cuda.is_available() and not dist.is_initialized():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    log = NcclLog() if torch.cuda.is_available() else None  # before the first communicator
    mesh = lins.init_mesh(timeout=120.0)
    on_gpu = mesh.backend == "nccl"
    dtype = s.dtype or ("bf16" if on_gpu else "fp32")
    first = mesh.rank == 0
    environment = describe(mesh, dtype)
    nodes, gpus = mesh.shape
    tasks = _planning.measurements(
        gpus,
        nodes,
        min_bytes=s.min_bytes,
        max_bytes=s.max_bytes or (1 << 30 if on_gpu else 64 << 20),
        factor=s.factor,
        sub_meshes=s.sub_meshes,
    )
    partial = Partial(Path(s.output) if first else None, environment)
    with Reporter(len(tasks), shown=first) as reporter:
        if s.resume:
            reporter.note(partial.load())
        missing = _agreed([t for t in tasks if t not in partial.points])
        try:
            _measure_all(mesh, missing, len(tasks), partial, s, DTYPES[dtype], reporter, log)
        finally:
            partial.save()
        compute = _core.measure_compute(mesh, _COMPUTE_BUDGET, DTYPES[dtype])
    if not first:
        return None
    complete = all(t in partial.points for t in tasks)
    report = _write(s, mesh, environment, partial.points, compute, complete)
    if complete:
        partial.remove()
    return report | {"points": len(partial.points), "of": len(tasks), "complete": complete}


def _agreed(tasks: list[Key]) -> list[Key]:
    """Rank 0's list, on all ranks: it alone knows what an earlier run left."""
    said = [tasks]
    dist.broadcast_object_list(said, src=0)
    return said[0]


def _measure_all(
    mesh: lins.Mesh,
    missing: list[Key],
    total: int,
    partial: Partial,
    s: Settings,
    dtype: torch.dtype,
    reporter: Reporter,
    log: NcclLog | None,
) -> None:
    left = s.budget
    for i, key in enumerate(missing):
        op, gpus, nodes, nbytes = key
        budget = s.point_budget
        if left is not None:
            if left <= 0:  # the same on all ranks: what a point took is agreed among them
                reporter.note(f"the time is up after {i} of {len(missing)} points")
                return
            budget = min(budget, left / (len(missing) - i))
        reporter.at(total - len(missing) + i, f"{op} {gpus}x{nodes} {size_text(nbytes)}")
        point, elapsed = _core.measure_collective(mesh, op, gpus, nodes, nbytes, budget, dtype)
        if left is not None:
            left -= elapsed
        if log and (algorithm := log.algorithm(op)):
            point["algorithm"] = algorithm
        partial.add(key, point)


def _write(
    s: Settings,
    mesh: lins.Mesh,
    environment: dict[str, str],
    points: dict[Key, dict[str, Any]],
    compute: dict[str, float],
    complete: bool,
) -> dict[str, Any]:
    nodes, gpus = mesh.shape
    lacking = [op for op in _OPS if not any(key[0] == op for key in points)]
    if lacking:
        raise LinsRuntimeError(
            f"the time was up after {len(points)} points, before any of {', '.join(lacking)}: "
            "run again to go on from there, or with a larger budget"
        )
    curves: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for key in sorted(points, key=lambda k: (_OPS.index(k[0]), k[2], k[1], k[3])):
        curves.setdefault(key[:3], []).append(points[key])
    document = {
        "format": "lins-profile",
        "version": 1,
        "name": s.name or Path(s.output).stem,
        "source": "measured",
        "gpus_per_node": gpus,
        "nodes": nodes,
        "environment": environment | {"complete": "yes" if complete else "no"},
        "compute": compute,
        "curves": [
            {"op": op, "gpus": g, "nodes": n, "points": p} for (op, g, n), p in curves.items()
        ],
    }
    profile = lins.Profile.from_json(json.dumps(document), s.output)
    profile.save(s.output)
    return {"output": s.output}


def size_text(nbytes: int) -> str:
    """4 KiB, 1 MiB; bytes where it is no whole number of them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} bytes"


if __name__ == "__main__":
    dist.init_process_group("gloo")  # ranks of one machine may share a GPU, which NCCL refuses
    serve(Path(sys.argv[1]), lambda settings: measure(Settings(**settings)))
