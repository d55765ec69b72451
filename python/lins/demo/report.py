"""The report of a run as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

_SPARKS = "▁▂▃▄▅▆▇█"


def show(report: dict[str, Any], console: Console) -> None:
    """Prints everything, the verdict last."""
    for table in (_plans(report), _memory(report), _received(report), _losses(report)):
        console.print(table)
        console.print()
    _verdict(report, console)


def _table(title: str, columns: Iterable[str], texts: int = 1) -> Table:
    """A table whose first `texts` columns are text, the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < texts else "right", overflow="fold")
    return table


def _plans(report: dict[str, Any]) -> Table:
    mesh = " x ".join(f"{k}={n}" for k, n in report["mesh"].items())
    table = _table(
        f"Plans on {mesh}: the redistributions of a unit's states in a step",
        ("policy", "moment", "from", "to", "steps"),
        texts=5,
    )
    for p in report["policies"]:
        for i, (moment, m) in enumerate(p["moments"].items()):
            steps = "\n".join(m["steps"]) or "-"
            table.add_row("" if i else p["policy"], moment, m["from"], m["to"], steps)
        table.add_section()
    return table


def _memory(report: dict[str, Any]) -> Table:
    policies = report["policies"]
    table = _table(
        "Bytes that a rank holds between steps, and the formula: parameters x bytes / pieces",
        ("state", "", *(p["policy"] for p in policies)),
        texts=2,
    )
    for state, name in (("param", "P"), ("grad", "G"), ("optim", "OS")):
        items = [p["memory"][state] for p in policies]
        table.add_row(name, "measured", *map(_measured, items))
        table.add_row("", "formula", *(f"{x['formula']:,}" for x in items))
        if any(x["padding"] for x in items):
            table.add_row("", "padding", *(f"{x['padding']:,}" for x in items))
    return table


def _received(report: dict[str, Any]) -> Table:
    policies = report["policies"]
    table = _table(
        f"Bytes that the worst rank receives in a step of {report['settings']['micro_batches']} "
        "micro-batches",
        ("role", "", *(p["policy"] for p in policies)),
        texts=2,
    )
    for role in policies[0]["received"]:
        items = [p["received"][role] for p in policies]
        table.add_row(role, "measured", *map(_measured, items))
        table.add_row("", "planned", *(f"{x['plan']:,}" for x in items))
    return table


def _measured(item: dict[str, int]) -> str:
    """The number, red where it is not the planned one."""
    text = f"{item['measured']:,}"
    return text if item["measured"] == item["plan"] else f"[red]{text}[/]"


def _losses(report: dict[str, Any]) -> Table:
    runs = [{"policy": "one process", **report["single"]}, *report["policies"]]
    table = _table(
        "Loss: mean over ranks and micro-batches, nats per byte",
        ("step", *(r["policy"] for r in runs)),
    )
    count = len(runs[0]["losses"])
    for step in sorted({0, *range(4, count, 5), count - 1}):
        table.add_row(str(step + 1), *(f"{r['losses'][step]:.4f}" for r in runs))
    table.add_section()
    table.add_row("curve", *(_spark(r["losses"]) for r in runs))
    differences = [r.get("largest_difference") for r in runs]
    table.add_row("largest difference", *("-" if d is None else f"{d:.1e}" for d in differences))
    table.add_row("median step", *(f"{r['step_seconds'] * 1e3:.0f} ms" for r in runs))
    return table


def _spark(losses: list[float], width: int = 10) -> str:
    """The curve in at most `width` characters, from the highest loss to the lowest."""
    stride = max(1, -(-len(losses) // width))
    points = losses[::stride]
    low, high = min(losses), max(losses)
    scale = (len(_SPARKS) - 1) / (high - low or 1.0)
    return "".join(_SPARKS[round((x - low) * scale)] if x == x else "?" for x in points)


def _verdict(report: dict[str, Any], console: Console) -> None:
    """Whether the numbers agree, in words."""
    numbers = (
        f"the largest relative difference is {report['largest_difference']:.1e} "
        f"(of gradient norms {report['largest_norm_difference']:.1e}), "
        f"the tolerance {report['tolerance']:.0e}."
    )
    if report["agree"]:
        console.print(f"[green]All losses agree with the single process:[/] {numbers}")
    else:
        console.print(f"[bold red]LOSSES DISAGREE with the single process:[/] {numbers}")
    if report["bytes_as_planned"]:
        console.print("[green]All bytes held and received are the planned ones.[/]")
    else:
        console.print("[bold red]BYTES DIFFER from the plans[/] where the tables are red.")
