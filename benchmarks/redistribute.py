"""What redistribute costs beyond the collective it is made of, beside torch's DTensor.

    python benchmarks/redistribute.py [--ranks 4] [--rounds 30] [--calls 40] [--large 64]

Starts the ranks as processes over Gloo. Every round runs each of four variants in turn, S0 -> R of
1,024 floats `calls` times and of `large` MiB once, so that all of them see the same machine:

    lins bare    the communicator's all_gather into a tensor that is there
    lins         lins.DTensor.redistribute("R")
    torch bare   torch.distributed.all_gather_into_tensor (all_gather_single) into one
    torch        torch.distributed.tensor.DTensor.redistribute([Replicate()]), waited for

Times are microseconds a call: processor time of the calling thread and of the whole process, and
wall time of the slowest rank. The median over rounds with the 10th and 90th percentile; of
processor times the mean over ranks first. Overhead: the median over rounds of the difference to
the bare collective of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

CLOCKS = ("thread", "process", "wall")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def variants(mesh, torch_mesh, numel: int) -> dict[str, Callable[[], object]]:
    """The four variants of S0 -> R, each a function that returns when the result is there."""
    import lins
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, Shard

    local = torch.rand(numel // dist.get_world_size())
    out = torch.empty(numel)
    comm = mesh.communicator("gpu")
    ours = lins.DTensor.from_local(local, mesh, "S0(gpu)", shape=(numel,))
    theirs = DTensor.from_local(local, torch_mesh, [Shard(0)], run_check=False)

    def torch_redistribute():
        result = theirs.redistribute(torch_mesh, [Replicate()]).to_local()
        return result.wait() if hasattr(result, "wait") else result

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    calls = {
        "lins bare": lambda: comm.all_gather(out, local),
        "lins": lambda: ours.redistribute("R"),
        "torch bare": lambda: gather(out, local),
        "torch": torch_redistribute,
    }
    assert torch.equal(ours.redistribute("R").to_local(), torch_redistribute())
    return calls


def measure(calls: dict[str, Callable[[], object]], comm, rounds: int, repeat: int):
    """{variant: [{clock: microseconds a call} for each round]} of this rank."""
    times: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(-3, rounds):  # the first three warm up
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = calls[name]
            comm.barrier()
            start = (time.thread_time(), time.process_time(), time.perf_counter())
            for _ in range(repeat):
                call()
            end = (time.thread_time(), time.process_time(), time.perf_counter())
            if turn >= 0:
                spans = zip(CLOCKS, start, end, strict=True)
                times[name].append({c: (b - a) / repeat * 1e6 for c, a, b in spans})
    return times


def play(args: argparse.Namespace) -> None:
    """One rank: measures, and rank 0 prints all ranks' times as JSON."""
    import lins
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    mesh = lins.init_mesh((1, size))
    torch_mesh = init_device_mesh("cpu", (size,))
    comm = mesh.communicator("gpu")
    mine = {}
    for what, numel, rounds, repeat in (
        ("small", 1024, args.rounds, args.calls),
        ("large", args.large * 2**18, args.rounds, 1),
    ):
        mine[what] = measure(variants(mesh, torch_mesh, numel), comm, rounds, repeat)
    everyone = [None] * size
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        print(json.dumps(everyone))
    comm.barrier()
    dist.destroy_process_group()


def rounds_of(ranks: list, what: str, name: str, clock: str) -> list[float]:
    """One number a round: the slowest rank's wall time, the mean of processor times."""
    over = max if clock == "wall" else statistics.fmean
    each = [[r[clock] for r in rank[what][name]] for rank in ranks]
    return [over(values) for values in zip(*each, strict=True)]


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile."""
    cuts = statistics.quantiles(values, n=10)
    return statistics.median(values), cuts[0], cuts[-1]


def report(ranks: list, args: argparse.Namespace) -> None:
    for what, size in (("small", "1,024 floats"), ("large", f"{args.large} MiB")):
        print(f"\nS0 -> R of {size}, {args.ranks} ranks, {args.rounds} rounds; microseconds a call")
        print("| clock | variant | median | 10 % | 90 % |\n|---|---|---:|---:|---:|")
        for clock in CLOCKS:
            for name in ranks[0][what]:
                cells = spread(rounds_of(ranks, what, name, clock))
                print(f"| {clock} | {name} | " + " | ".join(f"{x:.1f}" for x in cells) + " |")
        for clock in CLOCKS:
            over = {}
            for name in ("lins", "torch"):
                bare = rounds_of(ranks, what, f"{name} bare", clock)
                whole = rounds_of(ranks, what, name, clock)
                over[name] = statistics.median(b - a for a, b in zip(bare, whole, strict=True))
                over[name + " ratio"] = statistics.median(
                    b / a for a, b in zip(bare, whole, strict=True)
                )
            print(
                f"beyond the bare collective, {clock} time: lins {over['lins']:.1f} us "
                f"({over['lins ratio']:.3f} of it), torch {over['torch']:.1f} us "
                f"({over['torch ratio']:.3f}); lins / torch = {over['lins'] / over['torch']:.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=40, help="of the small tensor, a round")
    parser.add_argument("--large", type=int, default=64, help="MiB")
    args = parser.parse_args()
    if "RANK" in os.environ:
        return play(args)
    port = str(free_port())
    processes = []
    for rank in range(args.ranks):
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(args.ranks)}
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(args.ranks)}
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | env
        pipe = subprocess.PIPE if rank == 0 else None
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env=env, stdout=pipe))
    output, _ = processes[0].communicate()
    if any([p.wait() for p in processes]):
        sys.exit("a rank failed")
    report(json.loads(output.splitlines()[-1]), args)


if __name__ == "__main__":
    main()
