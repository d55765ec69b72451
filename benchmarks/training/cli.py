"""Options of benchmarks/step.py, and its runs one after another."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from lins.errors import LinsError
from lins.processes import Interrupted, Place, launch
from lins.profiling.settings import Settings as ProfileSettings

from training.cluster import ClusterError, Link, leftovers, nodes
from training.model import Shape
from training.report import check, print_goals, print_run
from training.settings import Settings

_HERE = Path(__file__).resolve().parent.parent
_NODES, _PER_NODE = 2, 2


def main() -> None:
    """Parses the command line, runs, prints tables; exit code 1 where losses disagree."""
    args = _parser().parse_args()
    # The ranks find these packages wherever the benchmark is started from.
    paths = [str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if args.overhead:
        from training.overhead import main as overhead

        overhead(args.rounds or 40)
        return
    for name in leftovers():
        print(f"removed {name}, left by a benchmark that was killed", file=sys.stderr)
    try:
        runs = _race(args)
    except (ClusterError, LinsError) as e:
        sys.exit(f"error: {e}")
    except Interrupted as e:
        sys.exit(e.exit_code)
    print_goals(runs)


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description="Training steps of lins beside its peers'.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--rates", type=_rates, default="1,4,unlimited", help="Gbit/s between nodes")
    p.add_argument("--micro-batches", type=_counts, default="1,4", help="M of a step")
    p.add_argument("--rounds", type=int, help="of each run; default 7, or 40 with --overhead")
    p.add_argument("--steps", type=int, default=2, help="timed in each turn")
    p.add_argument("--warm", type=int, default=1, help="steps before those, in each turn")
    p.add_argument("--cap", type=float, default=0.7, help="memory, as a part of what DDP needs")
    p.add_argument("--neighbours", type=int, default=2, help="of the solved plan that take part")
    p.add_argument("--only", default="", help="candidates, as they are named in the tables")
    for f in dataclasses.fields(Shape):
        p.add_argument(f"--{f.name.replace('_', '-')}", type=int, default=f.default)
    p.add_argument("--one-host", action="store_true", help="no nodes, no link: no rights needed")
    p.add_argument("--profiles", default="bench-results/step", help="folder of measured profiles")
    p.add_argument("--fresh", action="store_true", help="measure profiles that are there again")
    p.add_argument("--json", help="file for everything that was measured")
    p.add_argument("--overhead", action="store_true", help="of lins on one process, nothing else")
    return p


def _rates(text: str) -> list[float | None]:
    return [None if x == "unlimited" else float(x) for x in text.split(",")]


def _counts(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def _race(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs; prints each as it ends."""
    shape = Shape(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Shape)})
    folder = Path(args.profiles).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    for gbit in [None] if args.one_host else args.rates:
        with nodes(gbit, args.one_host) as link:
            place = _place(link)
            profile = _profile(folder, link, place, args.fresh)
            for count in args.micro_batches:
                s = Settings(
                    shape=shape,
                    nodes=_NODES,
                    per_node=_PER_NODE,
                    micro_batches=count,
                    gbit=gbit,
                    profile=str(profile),
                    interfaces=tuple(link.interfaces) if link else (),
                    only=tuple(filter(None, args.only.split(","))),
                    rounds=args.rounds or 7,
                    warm=args.warm,
                    steps=args.steps,
                    cap=args.cap,
                    neighbours=args.neighbours,
                )
                runs.append(launch("training.rank", _NODES, _PER_NODE, s.to_dict(), place))
                print_run(runs[-1])
                if args.json:
                    Path(args.json).write_text(json.dumps(runs))
                if problem := check(runs[-1]):
                    sys.exit(f"error: {problem}")
    return runs


def _place(link: Link | None) -> Place | None:
    if link is None:
        return None

    def place(node: int) -> tuple[list[str], dict[str, str]]:
        return link.command(node), {
            "MASTER_ADDR": link.addresses[0],
            "GLOO_SOCKET_IFNAME": link.interfaces[node],
        }

    return place


def _profile(folder: Path, link: Link | None, place: Place | None, fresh: bool) -> Path:
    """The file with the collectives of these nodes, measured now unless it is there."""
    rate = "one-host" if link is None else f"{link.gbit or 'unlimited'}gbit"
    path = folder / f"profile-{rate}.json"
    if fresh or not path.exists():
        print(f"measuring the profile {path}", file=sys.stderr)
        # The groups of one rank of each node are what a node-first schedule is made of.
        settings = ProfileSettings.quick(
            output=str(path), min_bytes=16384, max_bytes=8 << 20, sub_meshes=True, resume=False
        )
        launch("lins.profiling.rank", _NODES, _PER_NODE, settings.to_dict(), place)
    return path


if __name__ == "__main__":
    main()
