"""The command `lins profile`."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

import lins
from lins.cli_common import Bytes, console, json_option, need_torch, print_json
from lins.errors import LinsError


@click.command()
@click.option("-o", "--output", default="profile.json", show_default=True, help="The file.")
@click.option("--processes", type=click.IntRange(min=2), help="Start so many ranks here.")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Pretend that --processes are on so many nodes.",
)
@click.option("--quick", is_flag=True, help="About a minute: fewer sizes and meshes.")
@click.option("--budget", type=click.FloatRange(min=0), help="Seconds for all points together.")
@click.option("--min-bytes", type=Bytes(), default=4096, show_default=True)
@click.option("--max-bytes", type=Bytes(), help="Default: 64MiB on CPUs, 1GiB on GPUs.")
@click.option("--model", help="Up to the largest message of this model: 7B, 13B, 30B.")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="Of the messages.")
@click.option("--name", help="The profile's name. Default: that of the file.")
@click.option("--fresh", is_flag=True, help="Do not go on from an earlier run.")
@click.option("--plot", "picture", help="Also draw time and bandwidth, into this file.")
@json_option
def profile(
    output: str,
    processes: int | None,
    nodes: int,
    quick: bool,
    budget: float | None,
    min_bytes: int,
    max_bytes: int | None,
    model: str | None,
    dtype: str | None,
    name: str | None,
    fresh: bool,
    picture: str | None,
    as_json: bool,
) -> None:
    """Measure the collectives of this cluster into a profile.

    Under torchrun on the ranks of a job; with --processes on ranks of this machine, over Gloo.
    Stopped early, or out of time, it keeps what it has beside the file and goes on from there.

    Example: torchrun --nnodes 2 --nproc-per-node 8 ... -m lins profile -o cluster.json

    Example: lins profile --processes 4 --nodes 2 --quick -o here.json --plot here.png
    """
    need_torch("profile")
    if picture is not None:
        _need_matplotlib()  # before measuring for minutes
    from lins.processes import Interrupted
    from lins.profiling import run
    from lins.profiling.settings import Settings

    if model is not None:
        if max_bytes is not None:
            raise LinsError("--model says how large messages get, and so does --max-bytes")
        max_bytes = _largest_message(model)
    given = {
        "output": output,
        "name": name,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "dtype": dtype,
        "resume": not fresh,
    }
    if budget is not None:
        given["budget"] = budget
    try:
        report = run(Settings.quick(**given) if quick else Settings(**given), processes, nodes)
    except Interrupted as e:
        click.secho(f"stopped by {e}; run again to go on", fg="red", err=True)
        sys.exit(e.exit_code)
    if report is None:
        return
    measured = lins.Profile.load(output)
    if picture is not None:
        from lins.profiling.plot import plot

        plot(measured, picture)
        report["plot"] = picture
    report |= {"compute": measured.compute, "spikes": measured.spikes}
    if as_json:
        print_json(report)
    else:
        _show(measured, report)


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise LinsError("--plot needs matplotlib: pip install matplotlib") from None


def _largest_message(model: str) -> int:
    """Bytes of the largest unit in bf16, rounded up to a power of two."""
    spec = lins.ModelSpec.llama(model)
    return 1 << (max(2 * u.parameters for u in spec.units) - 1).bit_length()


def _show(profile: lins.Profile, report: dict[str, Any]) -> None:
    table = Table(
        title=escape(
            f"{profile.name}: {profile.nodes} nodes x {profile.gpus_per_node}, "
            f"{profile.environment['backend']}, {profile.environment['devices']}"
        ),
        title_justify="left",
    )
    table.add_column("operation")
    table.add_column("GPUs x nodes")
    for column in ("sizes", "smallest, us", "largest, ms", "GB/s", "spikes"):
        table.add_column(column, justify="right")
    for c in profile.curves:
        low, high = (
            profile.time(c.op, p.bytes, gpus=c.gpus, nodes=c.nodes)
            for p in (c.points[0], c.points[-1])
        )
        spikes = sum(
            (s["op"], s["gpus"], s["nodes"]) == (c.op, c.gpus, c.nodes) for s in profile.spikes
        )
        table.add_row(
            c.op,
            f"{c.gpus}x{c.nodes}",
            str(len(c.points)),
            f"{low * 1e6:,.1f}",
            f"{high * 1e3:,.2f}",
            f"{c.points[-1].bytes / high / 1e9:,.2f}",
            str(spikes or "-"),
        )
    out = console()
    out.print(table)
    compute = profile.compute
    out.print(
        f"one rank computes {compute['flops_per_second'] / 1e9:,.1f} Gflop/s while all do, "
        f"{compute['overlap_slowdown']:.2f} times slower while a collective runs"
    )
    missing = report["of"] - report["points"]
    if missing > 0:
        out.print(f"{missing} of {report['of']} points are missing: run again to go on")
    out.print(escape(f"written to {report['output']}"))
    if "plot" in report:
        out.print(escape(f"drawn in {report['plot']}"))
