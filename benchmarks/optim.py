"""Optimizer steps beside a copy, a triad and torch's fused AdamW, in turn in every round.
    python benchmarks/optim.py [--mib 64] [--rounds 15] [--threads 1 2] [--only flat]

flat: one parameter of `mib` MiB in fp32. GB/s counts what must be read and written once: AdamW 28
bytes per parameter, a triad 12, a copy 8.

many: 500 parameters of 1,024 elements beside one of 512,000, and torch's fused AdamW over as many
plain parameters and DTensors of torch.

lins' steps are whole ones on one rank, gradients reduced and compared before. Figures are medians
over rounds: wall time and, for one thread, processor time, which other work on the machine
disturbs less; ratios are of the same clock and round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import lins
import torch
import torch.distributed as dist
from torch import nn

Variant = tuple[Callable[[], object], float]  # what is timed, and the bytes it must move


class Flat(nn.Module):
    """Parameters whose gradients are random constants."""

    def __init__(self, count: int, numel: int) -> None:
        super().__init__()
        self.params = nn.ParameterList(torch.randn(numel) for _ in range(count))

    def forward(self) -> torch.Tensor:
        return sum((p * torch.randn_like(p)).sum() for p in self.params)


def ours(mesh, count: int, numel: int, make, clip: bool = False, **options) -> Callable[[], object]:
    model = lins.lins_shard(Flat(count, numel), mesh, "zero1", units=lambda m: False, **options)
    opt = make(model)
    model().backward()

    def step() -> None:
        if clip:
            # A norm is remembered until the gradients change: another kind is worked out anew.
            lins.clip_grad_norm_(model, 1.0, step.kind)
            step.kind = 3.0 - step.kind
        opt.step()

    step.kind = 1.0
    step()
    return step


def torchs(params: list[nn.Parameter]) -> Callable[[], object]:
    opt = torch.optim.AdamW(params, fused=True)
    for p in params:
        p.grad = torch.randn_like(p)
    opt.step()
    return opt.step


def flat(mesh, numel: int) -> dict[str, Variant]:
    a, b, c = (torch.randn(numel) for _ in range(3))
    bf16 = {"param_dtype": torch.bfloat16}
    variants: dict[str, Variant] = {
        "copy": (lambda: a.copy_(b), 8),
        "triad": (lambda: torch.add(b, c, alpha=3.0, out=a), 12),
        "torch fused AdamW": (torchs([nn.Parameter(torch.randn(numel))]), 28),
    }
    rules = {
        "lins AdamW": (lambda m: lins.AdamW(m), {}, 28),
        "lins AdamW fused": (lambda m: lins.AdamW(m, fused=True), {}, 28),
        "lins AdamW fused bf16": (lambda m: lins.AdamW(m, fused=True), bf16, 28),
        "lins AdamW bf16": (lambda m: lins.AdamW(m), bf16, 28),
        "lins AdamW bf16 stochastic": (lambda m: lins.AdamW(m, rounding="stochastic"), bf16, 28),
        "lins AdamW8bit": (lambda m: lins.AdamW8bit(m), {}, 16),
        "lins SGD momentum": (lambda m: lins.SGD(m, momentum=0.9), {}, 20),
        "lins Lion": (lambda m: lins.Lion(m), {}, 20),
    }
    for name, (make, options, size) in rules.items():
        variants[name] = (ours(mesh, 1, numel, make, **options), size)
    clipped = ours(mesh, 1, numel, lambda m: lins.AdamW(m), clip=True)
    variants["lins norm + clip + AdamW"] = (clipped, 32)
    return {name: (fn, size * numel) for name, (fn, size) in variants.items()}


def many(mesh) -> dict[str, Variant]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    count, numel = 500, 1024
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch_mesh = init_device_mesh("cpu", (1,))
    plain = [nn.Parameter(torch.randn(numel)) for _ in range(count)]
    sharded = [
        nn.Parameter(distribute_tensor(torch.randn(numel), torch_mesh, [Shard(0)]))
        for _ in range(count)
    ]
    size = 28.0 * count * numel
    return {
        "lins AdamW, 1 x 512,000": (ours(mesh, 1, count * numel, lambda m: lins.AdamW(m)), size),
        "lins AdamW, 500 x 1,024": (ours(mesh, count, numel, lambda m: lins.AdamW(m)), size),
        "torch fused, 1 x 512,000": (torchs([nn.Parameter(torch.randn(count * numel))]), size),
        "torch fused, 500 x 1,024": (torchs(plain), size),
        "torch fused, 500 DTensors": (torchs(sharded), size),
    }


def measure(variants: dict[str, Variant], base: str, rounds: int, threads: int, calls: int) -> None:
    clocks = {"wall": time.perf_counter}
    if threads == 1:
        clocks["processor"] = time.thread_time
    times: dict[str, dict[str, list[float]]] = {c: {v: [] for v in variants} for c in clocks}
    for _ in range(rounds):
        for name, (fn, _) in variants.items():
            begin = {c: clock() for c, clock in clocks.items()}
            for _ in range(calls):
                fn()
            for c, clock in clocks.items():
                times[c][name].append((clock() - begin[c]) / calls)
    for c, by_name in times.items():
        print(f"\n{threads} thread(s), {c} time, median of {rounds} rounds")
        for name, (_, size) in variants.items():
            t = statistics.median(by_name[name])
            ratios = [
                (variants[base][1] / b) / (size / x)
                for b, x in zip(by_name[base], by_name[name], strict=True)
            ]
            speed = 1 / statistics.median(ratios)
            print(f"  {name:28s} {t * 1e3:9.3f} ms {size / t / 1e9:7.1f} GB/s  {speed:6.2f} {base}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=["flat", "many"])
    args = parser.parse_args()

    def run(mesh) -> None:
        for threads in args.threads:
            torch.set_num_threads(threads)
            if args.only != "many":
                measure(flat(mesh, args.mib << 18), "triad", args.rounds, threads, 1)
        torch.set_num_threads(1)
        if args.only != "flat":
            measure(many(mesh), "lins AdamW, 1 x 512,000", args.rounds, 1, 5)

    lins.testing.run((1, 1), ("node", "gpu"), run, timeout=600.0)


if __name__ == "__main__":
    main()
