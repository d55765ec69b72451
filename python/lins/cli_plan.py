"""The planning commands: plan, explain, what-if, diff, frontier, simulate, table3. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import lins
from lins import _planning
from lins.cli_common import Bytes, json_option

OPTIMIZERS = list(_planning.optimizer_bytes())


class _Scale(click.ParamType):
    """4x32 -> (4, 32): nodes x micro-batches."""

    name = "NODESxM"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        try:
            nodes, micro_batches = value.split("x")
            return int(nodes), int(micro_batches)
        except ValueError:
            self.fail(f"{value!r}: write nodes x micro-batches like 4x32", param, ctx)


_PROBLEM = [
    click.option("--model", default="7B", show_default=True, help="7B, 13B or 30B, or any name."),
    click.option("--hidden", type=int, help="Width of a Llama; with --layers and --ffn."),
    click.option("--layers", type=int),
    click.option("--ffn", type=int),
    click.option("--vocabulary", type=int),
    click.option("--seq-len", type=int, default=4096, show_default=True),
    click.option(
        "--micro-batch", type=int, default=1, show_default=True, help="Sequences at once."
    ),
    click.option("--recompute", type=click.Choice(["none", "full"]), default="none"),
    click.option(
        "--optimizer",
        type=click.Choice(OPTIMIZERS),
        default="adamw",
        show_default=True,
        help="Whose states the memory must hold.",
    ),
    click.option("--nodes", type=int, default=1, show_default=True),
    click.option("--gpus", type=int, default=8, show_default=True, help="GPUs of a node."),
    click.option("--memory", type=Bytes(), default="80G", show_default=True, help="Of one GPU."),
    click.option("--quota", type=Bytes(), help="What a scheduler lets the job use of it."),
    click.option("--profile", default="a800", show_default=True, help="A shipped name or a path."),
    click.option("--tensor-parallel", type=int, default=1),
    click.option("--pipeline-parallel", type=int, default=1),
    click.option("-m", "--micro-batches", type=int, default=1, show_default=True, help="M."),
    click.option("--global-tokens", type=int, help="Of one step, in place of -m."),
    click.option("--objective", type=click.Choice(["step", "comm"]), default="step"),
    click.option("--space", type=click.Choice(["paper", "nested", "full"]), default="nested"),
    click.option("--family", type=click.Choice(["planned", "paper"]), default="planned"),
    click.option("--cap", type=Bytes(), help="Of one GPU, instead of its memory or quota."),
    click.option("--per-unit", is_flag=True, help="A choice per unit, not one for all."),
    click.option("--split-repeats", is_flag=True, help="Copies of a unit choose for themselves."),
    click.option("--tie-epsilon", type=float, default=0.02, show_default=True),
    click.option("--prefetch", type=int, default=1, show_default=True),
    click.option("--offload", is_flag=True, help="Optimizer states and masters in host memory."),
    click.option(
        "--host-bandwidth",
        type=float,
        default=0.0,
        help="Bytes per second between a GPU and its host, both ways together. [assumed: 25e9]",
    ),
    click.option(
        "--memory-bandwidth",
        type=float,
        default=0.0,
        help="Bytes per second of a GPU's memory (A100: 1.6e12): counts the optimizer's seconds.",
    ),
    click.option("--scale", "scales", type=_Scale(), multiple=True, help="A further size: 4x32."),
]


def _problem(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that describe a model on a cluster."""
    for option in reversed(_PROBLEM):
        command = option(command)
    return command


def _inputs(o: dict[str, Any]) -> tuple[lins.ModelSpec, lins.Cluster, dict[str, Any]]:
    sizes = {k: o[k] for k in ("hidden", "layers", "ffn", "vocabulary") if o[k] is not None}
    spec = lins.ModelSpec.llama(
        o["model"],
        seq_len=o["seq_len"],
        micro_batch=o["micro_batch"],
        recompute=o["recompute"],
        optimizer=o["optimizer"],
        **sizes,
    )
    cluster = lins.Cluster(
        nodes=o["nodes"],
        gpus_per_node=o["gpus"],
        memory_bytes=o["memory"],
        quota_bytes=o["quota"],
        profile=o["profile"],
        tensor_parallel=o["tensor_parallel"],
        pipeline_parallel=o["pipeline_parallel"],
        host_bandwidth=o["host_bandwidth"],
        memory_bandwidth=o["memory_bandwidth"],
    )
    same = ("global_tokens", "objective", "space", "family", "split_repeats", "tie_epsilon")
    settings = {k: o[k] for k in (*same, "micro_batches", "prefetch", "offload")}
    settings |= {"cap_bytes": o["cap"], "uniform": not o["per_unit"]}
    if o["scales"]:
        settings["scales"] = list(o["scales"])
    return spec, cluster, settings


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=180)


def _show(report: lins.Report, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _console().print(report)


@click.command()
@_problem
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="plan.json")
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), help="Keep plans here.")
@json_option
def plan(out: Path | None, cache: Path | None, as_json: bool, **options: Any) -> None:
    """Solve for the cheapest placement of P, G and OS within the memory, and explain it.

    Example: lins plan --model 13B --nodes 16 -m 4 -o plan.json
    """
    spec, cluster, settings = _inputs(options)
    answer = lins.solve(spec, cluster, cache=cache, **settings)
    if out is not None:
        answer.save(out)
    if as_json:
        click.echo(answer.to_json(), nl=False)
    else:
        _console().print(answer.explain())


_plan_argument = click.argument("path", type=click.Path(dir_okay=False, path_type=Path))


@click.command()
@_plan_argument
@click.option("--unit", help="One unit: its collectives, and every policy it could have.")
@json_option
def explain(path: Path, unit: str | None, as_json: bool) -> None:
    """Explain a saved plan, or one unit of it."""
    saved = lins.Plan.load(path)
    _show(saved.why(unit) if unit is not None else saved.explain(), as_json)


@click.command("what-if")
@_plan_argument
@click.option("--cap", type=Bytes(), help="Of one GPU's memory.")
@click.option("--nodes", type=int)
@click.option("-m", "--micro-batches", type=int)
@click.option("--micro-batch", type=int, help="Sequences at once.")
@click.option("--recompute", type=click.Choice(["none", "full"]))
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), help="Whose states memory must hold.")
@click.option("--offload/--no-offload", default=None, help="Optimizer states in host memory.")
@click.option("--host-bandwidth", type=float, help="Bytes per second between a GPU and its host.")
@click.option("--memory-bandwidth", type=float, help="Bytes per second of a GPU's memory.")
@click.option("--objective", type=click.Choice(["step", "comm"]))
@click.option("--space", type=click.Choice(["paper", "nested", "full"]))
@click.option("--profile", help="A shipped name or a path.")
@click.option("--policy", help="Price this one: zero3, 'P=1 G=4x1 OS=8x1'.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="plan.json")
@json_option
def what_if(path: Path, cap: int | None, out: Path | None, as_json: bool, **changes: Any) -> None:
    """Solve a saved plan's problem again with changes, and show what differs."""
    saved = lins.Plan.load(path)
    given = {k: v for k, v in changes.items() if v is not None}
    if cap is not None:
        given["cap_bytes"] = cap
    changed = saved.what_if(**given)
    if out is not None:
        changed.save(out)
    _show(lins.diff(saved, changed), as_json)


@click.command()
@click.argument("first", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("second", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Compare two saved plans: inputs, placements, costs, memory."""
    _show(lins.diff(lins.Plan.load(first), lins.Plan.load(second)), as_json)


@click.command()
@_problem
@click.option("--points", type=click.IntRange(min=2), default=16, help="Caps, with --per-unit.")
@json_option
def frontier(points: int, as_json: bool, **options: Any) -> None:
    """Show time against memory: plans that no other beats in both."""
    spec, cluster, settings = _inputs(options)
    _show(lins.explain_frontier(lins.frontier(spec, cluster, points=points, **settings)), as_json)


@click.command()
@_plan_argument
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Chrome trace.")
@json_option
def simulate(path: Path, trace: Path | None, as_json: bool) -> None:
    """Run one training step of a saved plan as events."""
    saved = lins.Plan.load(path)
    run = saved.simulate()
    if trace is not None:
        try:
            trace.write_text(run.chrome_trace())
        except OSError as e:
            raise lins.LinsError(f"cannot write '{trace}': {e.strerror}") from e
    facts = {
        "step": run.step,
        "compute": run.compute,
        "exposed": run.exposed,
        "optimizer": run.optimizer,
        "link_busy": run.link_busy,
        "predicted_step": saved.cost["step"],
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for name, seconds in facts.items():
        click.echo(f"{name:15} {seconds:.6g} s")


@click.command()
@json_option
def table3(as_json: bool) -> None:
    """Find the three plans of the paper again, and show what decides them."""
    _show(lins.explain_table3(), as_json)


commands = (plan, explain, what_if, diff, frontier, simulate, table3)
