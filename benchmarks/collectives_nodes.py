"""Collectives between two emulated nodes: lins by nodes, lins directly, and Gloo's own.

    sudo .venv/bin/python benchmarks/collectives_nodes.py build-bench/benchmarks/bench_collectives
    ... --gbit 1 --per-node 2 --rounds 9 --kib 1024 16384       # --gbit 0: a link without a limit

Two network namespaces are the nodes. Columns: microseconds of the three variants, which take turns
in every round; the least time in which the bytes that must leave a node pass the link; Gloo's own
over lins'; the bytes that left the first node, as multiples of the message.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from training.cluster import Link

# Messages that must leave each of two nodes, for a message of one.
CROSSING = {"all_gather": 0.5, "reduce_scatter": 0.5, "all_reduce": 1.0, "broadcast": 1.0}


def with_link_times(line: str, gbit: float) -> str:
    """A row of the program with the link's least time, in microseconds, before the bytes."""
    cells = [x.strip() for x in line.strip().strip("|").split("|")]
    share = CROSSING.get(cells[2])
    least = ""
    if gbit and share:
        least = f"{share * int(cells[1].split()[0]) * 1024 * 8 / gbit / 1e3:.0f}"
    return "| " + " | ".join([*cells[:6], least, *cells[6:]]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--per-node", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kib", type=int, nargs="+", default=[64, 512, 1024, 4096, 16384])
    args = parser.parse_args()

    titles = "processes|message|operation|by nodes, us|direct, us|gloo, us|link, us|gloo / by nodes"
    titles += "|by nodes, sent|direct, sent|gloo, sent"
    print("| " + titles.replace("|", " | ") + " |")
    print("|---|---|---|" + "---:|" * 8, flush=True)
    size = 2 * args.per_node
    with Link(args.gbit or None) as link, tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            node = rank // args.per_node
            environment = os.environ | {
                "GLOO_SOCKET_IFNAME": link.interfaces[node],
                "OMP_NUM_THREADS": "1",
                "COLLECTIVES_KIB": " ".join(map(str, args.kib)),
            }
            command = [str(args.program), "--rank", rank, size, args.rounds, f"{folder}/store", 2]
            ranks.append(
                subprocess.Popen(
                    link.command(node) + [str(x) for x in command],
                    env=environment,
                    stdout=subprocess.PIPE if rank == 0 else None,
                    text=True,
                )
            )
        try:
            assert ranks[0].stdout is not None
            for line in ranks[0].stdout:
                print(with_link_times(line, args.gbit), flush=True)
            if any(process.wait(60) for process in ranks):
                raise SystemExit("a rank failed")
        finally:
            for process in ranks:
                process.kill()


if __name__ == "__main__":
    main()
