"""The command `lins`. Each command imports what it needs: planning works without torch."""

from __future__ import annotations

import os
import platform
import sys
from importlib import util
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

import lins
from lins import cli_plan
from lins.cli_common import console, json_option, need_torch, print_json
from lins.cli_profile import profile
from lins.errors import LinsError


class _Group(click.Group):
    """Turns a LinsError into one red message and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LinsError as e:
            click.secho(f"error: {e}", fg="red", err=True)
            ctx.exit(2)


class _Numbers(click.ParamType):
    """10,4 -> (10, 4); an empty text is the shape of a scalar."""

    name = "N,N,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(x) for x in value.split(",")) if value.strip() else ()
        except ValueError:
            self.fail(f"{value!r}: write sizes like 10,4", param, ctx)


class _MeshType(click.ParamType):
    """node=2,gpu=4 -> lins.Mesh((2, 4), ("node", "gpu"))."""

    name = "AXIS=N,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> lins.Mesh:
        if isinstance(value, lins.Mesh):
            return value
        try:
            axes = [(name.strip(), int(n)) for name, n in (x.split("=") for x in value.split(","))]
        except ValueError:
            self.fail(f"{value!r}: write axes, slowest link first, like node=2,gpu=4", param, ctx)
        return lins.Mesh([n for _, n in axes], [name for name, _ in axes])


_shape_option = click.option(
    "--shape", type=_Numbers(), required=True, help="Sizes of the global tensor: 10,4."
)
_mesh_option = click.option(
    "--mesh",
    type=_MeshType(),
    required=True,
    help="Axes of the mesh, slowest link first: node=2,gpu=4.",
)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(lins.__version__, prog_name="lins")
def main() -> None:
    """Data-parallel training with parameters, gradients and optimizer state placed apart."""


@main.command()
@click.option("--short", is_flag=True, help="A small model and a few steps: seconds, not minutes.")
@click.option("--steps", type=click.IntRange(min=1), help="Optimizer steps under each plan.")
@click.option("--tied", is_flag=True, help="The output layer shares the embedding's weights.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help="A plan to train under, repeatable: ddp, zero3, 'P=1 G=1 OS=2', ...",
)
@json_option
def demo(
    short: bool, steps: int | None, tied: bool, policies: tuple[str, ...], as_json: bool
) -> None:
    """Train a small Llama under several plans on 4 processes, as 2 nodes x 2.

    Prints each plan, the bytes that ranks hold and receive beside the plan's own numbers, and the
    losses beside those of a single process. Exit code 1 when any of them disagree. Under torchrun
    it runs on torchrun's processes.
    """
    need_torch("demo")
    from lins.demo import run
    from lins.demo.settings import Settings
    from lins.processes import Interrupted

    changes: dict[str, Any] = {"tied": tied}
    if steps is not None:
        changes["steps"] = steps
    if policies:
        changes["policies"] = tuple(dict.fromkeys(policies))
    try:
        report = run(Settings.short(**changes) if short else Settings(**changes))
    except Interrupted as e:
        click.secho(f"stopped by {e}", fg="red", err=True)
        sys.exit(e.exit_code)
    if report is None:
        return
    if as_json:
        print_json(report)
    else:
        from lins.demo.report import show

        show(report, console())
    if not (report["agree"] and report["bytes_as_planned"]):
        sys.exit(1)


@main.command()
@click.argument("layout")
@_shape_option
@_mesh_option
@json_option
def inspect(layout: str, shape: tuple[int, ...], mesh: lins.Mesh, as_json: bool) -> None:
    """Show who owns what under LAYOUT.

    Example: lins inspect "S0(gpu,node)" --shape 10,4 --mesh node=2,gpu=4
    """
    value = lins.Layout(layout, shape=shape, mesh=mesh)
    ranks = [
        {
            "rank": r,
            "coordinate": list(mesh.coordinate(r)),
            "ranges": [list(x) for x in value.ranges(r)],
            "local_shape": list(value.local_shape(r)),
        }
        for r in range(mesh.size)
    ]
    if as_json:
        print_json(
            {"layout": str(value), "shape": list(shape), "mesh": _axes(mesh), "ranks": ranks}
        )
        return
    table = Table(title=escape(f"{value} of shape {list(shape)}"), title_justify="left")
    for name in ("rank", *mesh.axes):
        table.add_column(name, justify="right")
    flat = str(value).startswith(("F(", "O("))  # one range, in the flattened elements
    dims = ["elements"] if flat else [f"dim {d}" for d in range(len(shape))]
    for name in (*dims, "local shape"):
        table.add_column(name)
    for r in ranks:
        ranges = [f"{a}:{b}" if b > a else "-" for a, b in r["ranges"]]
        cells = (r["rank"], *r["coordinate"], *ranges, r["local_shape"])
        table.add_row(*(escape(str(c)) for c in cells))
    console().print(table)


@main.command()
@click.argument("src")
@click.argument("dst")
@_shape_option
@_mesh_option
@click.option("--itemsize", type=click.IntRange(min=1), default=4, help="Bytes per element.")
@json_option
def redistribute(
    src: str, dst: str, shape: tuple[int, ...], mesh: lins.Mesh, itemsize: int, as_json: bool
) -> None:
    """Plan how to get from layout SRC to layout DST with the fewest received bytes.

    Example: lins redistribute "S0(gpu)" R --shape 10,4 --mesh node=2,gpu=4
    """
    a, b = (lins.Layout(x, shape=shape, mesh=mesh) for x in (src, dst))
    plan = lins.plan_redistribution(a, b, itemsize=itemsize)
    steps = [
        {
            "kind": s.kind,
            "axes": s.axes,
            "before": str(s.before),
            "after": str(s.after),
            "bytes": s.bytes,
            "recv_bytes": s.recv_bytes,
            "peak_bytes": s.peak_bytes,
        }
        for s in plan.steps
    ]
    if as_json:
        totals = {k: getattr(plan, k) for k in ("recv_bytes", "peak_bytes", "lower_bound_bytes")}
        print_json(
            {"src": str(a), "dst": str(b), "shape": list(shape), "mesh": _axes(mesh)}
            | {"itemsize": itemsize, "steps": steps, **totals}
        )
        return
    click.echo(str(plan))


@main.command("legal-plans")
@click.option("--gpus", type=click.IntRange(min=1), required=True, help="GPUs per node.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--space",
    type=click.Choice(["nested", "paper"]),
    default="nested",
    show_default=True,
    help="paper: G is placed like P or like OS.",
)
@json_option
def legal_plans(gpus: int, nodes: int, space: str, as_json: bool) -> None:
    """List all legal placements of P, G and OS, as GPUs per node x nodes."""
    plans = lins.legal_plans(gpus, nodes, space=space)
    if as_json:
        keys = ("param", "grad", "optim")
        print_json([dict(zip(keys, map(list, p), strict=True)) for p in plans])
        return
    table = Table(
        title=f"{len(plans)} {space} plans on {nodes} x {gpus} GPUs", title_justify="left"
    )
    for name in ("", "P", "G", "OS", "policy"):
        table.add_column(name)
    for i, p in enumerate(plans, 1):
        text = ["x".join(map(str, f)) for f in p]
        policy = " ".join(f"{k}={t}" for k, t in zip(("P", "G", "OS"), text, strict=True))
        table.add_row(str(i), *text, policy)
    console().print(table)


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Report versions, backends, cores and the environment that training would see."""
    facts = _facts()
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False)
    for key, value in facts.items():
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, dict):
            value = "\n".join(f"{k}={v}" for k, v in value.items())
        table.add_row(key, escape(str(value or "-")))
    console().print(table)


for _command in (profile, *cli_plan.commands):
    main.add_command(_command)


def _facts() -> dict[str, Any]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    also = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES")
    facts: dict[str, Any] = {
        "lins": lins.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "environment": {k: os.environ[k] for k in (*names, *also) if k in os.environ},
        "torch": None,
    }
    if util.find_spec("torch") is not None:
        import torch
        import torch.distributed as dist

        available = dist.is_available()
        facts |= {
            "torch": torch.__version__,
            "CUDA in torch": torch.version.cuda,
            "GPUs": torch.cuda.device_count(),
            "gloo": available and dist.is_gloo_available(),
            "NCCL in torch": available and dist.is_nccl_available(),
            "NCCL in lins": _nccl(),
        }
    return facts


def _nccl() -> str:
    """Whether lins can use NCCL, or why not: it says so before it connects."""
    from torch.distributed import HashStore

    from lins import _core

    try:
        _core.nccl_world(HashStore(), 0, 1, 1.0).shutdown()
    except LinsError as e:
        return str(e)
    return "usable"


def _axes(mesh: lins.Mesh) -> dict[str, int]:
    return dict(zip(mesh.axes, mesh.shape, strict=True))
