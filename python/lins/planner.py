"""Planning: the cheapest placement of P, G and OS within the memory. No torch, no processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lins import _planning
from lins._planning import Cluster, ModelSpec, Plan, Report
from lins.errors import LinsError


def solve(
    spec: ModelSpec,
    cluster: Cluster,
    micro_batches: int = 1,
    objective: str = "step",
    space: str = "nested",
    family: str = "planned",
    cap_bytes: int | None = None,
    *,
    global_tokens: int | None = None,
    uniform: bool = True,
    split_repeats: bool = False,
    tie_epsilon: float = 0.02,
    bucket_bytes: int = 512 * 2**20,
    scales: Iterable[Sequence[float]] | None = None,
    prefetch: int = 1,
    overlap: bool = True,
    overlap_update: bool = True,
    offload: bool = False,
    cache: str | Path | None = None,
    **memory: Any,
) -> Plan:
    """The cheapest plan whose memory fits, proven to be that.

    Nothing is communicated. All plans of the space are compared, so the answer is exact.

    Args:
        spec: the model's units.
        cluster: the machines; its profile says what collectives cost.
        micro_batches: M of one optimizer step, or global_tokens to have it worked out.
        objective: "comm", seconds of communication; or "step", those that compute does not hide,
            and where the cluster has a memory_bandwidth those of the optimizer.
        space: "paper" (G like P or like OS), "nested" (P <= G <= OS), or "full" (also G in fewer
            pieces than P, and pieces of P kept between forward and backward).
        family: "planned", the cheapest redistributions; or "paper", the paper's collectives.
        cap_bytes: of one GPU's memory; default: the cluster's quota or memory.
        global_tokens: of one optimizer step.
        uniform: one choice for all units; False: a choice per unit (a multiple-choice knapsack).
        split_repeats: with uniform=False, copies of a unit choose for themselves.
        tie_epsilon: of a uniform plan: costs within this part of the least one are equal; then
            the cheaper extra micro-batch, fewer nodes spanned, less memory decide.
        bucket_bytes: U of the paper's formulas.
        scales: further sizes of the job that the plan must suit: (nodes, micro_batches) or
            (nodes, micro_batches, weight of its cost in the sum).
        prefetch: units gathered ahead of compute.
        overlap: communication beside compute at all.
        overlap_update: parameters updated during the next forward.
        offload: OS, masters included, is in host memory, and the GPU holds the chunks that are
            being updated; seconds of the link to the host are counted, in both objectives.
        cache: a folder of plans: one that was made from the same inputs is read, any other is
            solved for and kept there.
        memory: gathered_units, gradient_buckets, fp32_gradient_copy, communicator_bytes, margin,
            correction_bytes, offload_chunk_bytes (docs/policy.md).

    Raises:
        Infeasible: nothing fits; with the least memory that would do and the largest items.
        LinsError: arguments out of range, with what is legal.

    Example:
        >>> import lins
        >>> spec = lins.ModelSpec.llama("7B", seq_len=4096, micro_batch=1)
        >>> cluster = lins.Cluster(nodes=16, gpus_per_node=8, profile="a800")
        >>> lins.solve(spec, cluster, micro_batches=8).factors
        {'param': (1, 1), 'grad': (1, 1), 'optim': (8, 8)}
    """
    settings = memory | {
        "micro_batches": micro_batches,
        "global_tokens": global_tokens,
        "objective": objective,
        "space": space,
        "family": family,
        "cap_bytes": cap_bytes,
        "uniform": uniform,
        "split_repeats": split_repeats,
        "tie_epsilon": tie_epsilon,
        "bucket_bytes": bucket_bytes,
        "scales": list(scales) if isinstance(scales, Iterable) else scales,
        "prefetch": prefetch,
        "overlap": overlap,
        "overlap_update": overlap_update,
        "offload": offload,
    }
    if cache is None:
        return _planning.solve(spec, cluster, **settings)
    path = _cached(Path(cache), spec, cluster, settings)
    # A file that is damaged, or of another version of lins, is made again.
    with contextlib.suppress(LinsError):
        return Plan.load(path, spec, cluster)
    plan = _planning.solve(spec, cluster, **settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    plan.save(path)
    return plan


def _cached(folder: Path, spec: ModelSpec, cluster: Cluster, settings: dict[str, Any]) -> Path:
    """The file of a problem's plan: its name holds a digest of all inputs."""
    parts = _planning.fingerprint(spec, cluster, **settings)
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", spec.name)[:40]
    return folder / f"{name}-{cluster.nodes}x{cluster.gpus_per_node}-{digest}.json"


def frontier(spec: ModelSpec, cluster: Cluster, points: int = 16, **settings: Any) -> list[Plan]:
    """Plans that no other beats in both time and memory, by rising memory.

    Uniform plans: all of them. With uniform=False: the optima under `points` caps from the least
    memory to what the fastest plan needs. settings are those of solve().

    Example:
        >>> import lins
        >>> spec = lins.ModelSpec.llama("7B")
        >>> cluster = lins.Cluster(nodes=1, gpus_per_node=8)
        >>> plans = lins.frontier(spec, cluster, objective="comm")
        >>> plans[0].memory["total"] < plans[-1].memory["total"]
        True
    """
    return _planning.frontier(spec, cluster, points=points, **settings)


def _tables(report: Report) -> list[Table]:
    out = []
    for t in report.tables:
        table = Table(title=escape(t.title) or None, title_justify="left")
        for column in t.columns:
            table.add_column(escape(column))
        for row in t.rows:
            table.add_row(*map(escape, row))
        out.append(table)
    return out


def _render(report: Report, console: Console, options: ConsoleOptions) -> RenderResult:
    parts: list[Any] = [Text(report.title, style="bold"), *_tables(report)]
    parts += [Text(note) for note in report.notes]
    parts += [Text(f"warning: {w}", style="yellow") for w in report.warnings]
    yield Group(*parts)


def _html(report: Report) -> str:
    import io

    console = Console(record=True, width=180, file=io.StringIO())
    console.print(report)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _to_dict(report: Report) -> dict[str, Any]:
    """Everything in it, for JSON."""
    return {
        "title": report.title,
        "tables": [
            {"title": t.title, "columns": list(t.columns), "rows": [list(r) for r in t.rows]}
            for t in report.tables
        ],
        "notes": list(report.notes),
        "warnings": list(report.warnings),
    }


# A Report is plain text in C++; here it also knows rich, notebooks and JSON.
Report.__rich_console__ = _render
Report._repr_html_ = _html
Report.to_dict = _to_dict
