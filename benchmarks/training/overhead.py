"""What wrapping costs where there is nothing to communicate: one process, all factors 1."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import lins
import torch
from lins.demo.data import Batches
from lins.demo.model import build
from lins.demo.settings import Settings
from lins.demo.train import loss_of
from torch import nn

from training.report import Spread, spread

_UNITS = 100


def main(rounds: int) -> None:
    """Prints both figures as a table."""
    torch.set_num_threads(1)
    print("| one process, all factors 1 | median (10-90 %) | goal | |\n|---|---:|---:|---|")
    for fused in (False, True):
        for clock, (ratio, plain) in step_ratios(rounds, fused).items():
            over = Spread(*(100 * (x - 1) for x in ratio))
            print(
                f"| step of the demo model beyond plain torch's {plain * 1e3:.1f} ms with "
                f"torch.optim.AdamW({'fused=True' if fused else ''}), {clock} time, % | "
                f"{over:.2f} | 2 | {_verdict(over.median < 2)} |"
            )
    forward, backward = hook_seconds(rounds)
    for what, value in (("forward", forward), ("backward", backward)):
        us = Spread(*(1e6 * x for x in value))
        print(f"| hooks of a unit, {what}, us | {us:.1f} | 20 | {_verdict(us.median < 20)} |")


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


_CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def step_ratios(rounds: int, fused: bool) -> dict[str, tuple[Spread, float]]:
    """By clock: time of a wrapped step over a plain one's of the same round, and the plain one's
    seconds. Processor time, of all threads, minds other work on the machine less."""
    s = Settings()
    batches = Batches(s, ranks=1)
    plain, wrapped = build(s), build(s)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=s.lr, fused=fused or None)
    lins.lins_shard(wrapped, lins.init_mesh((1, 1)), "P=1 G=1 OS=1")
    flat = lins.AdamW(wrapped, lr=s.lr)

    def plain_step(i: int) -> float:
        total = 0.0
        for m in range(s.micro_batches):
            loss = loss_of(plain, *batches.of_rank(i, m, 0))
            (loss / s.micro_batches).backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        return total

    def lins_step(i: int) -> float:
        total = 0.0
        for m in range(s.micro_batches):
            with lins.micro_batch(wrapped, index=m, count=s.micro_batches):
                loss = loss_of(wrapped, *batches.of_rank(i, m, 0))
                loss.backward()
            total += loss.item()
        flat.step()
        flat.zero_grad()
        return total

    times: dict[str, dict[str, list[float]]] = {c: {"plain": [], "lins": []} for c in _CLOCKS}
    for i in range(-3, rounds):
        pair = [("plain", plain_step), ("lins", lins_step)]
        said = []
        for name, step in pair if i % 2 else pair[::-1]:
            begin = {c: clock() for c, clock in _CLOCKS.items()}
            said.append(step(i + 3))
            for c, clock in _CLOCKS.items():
                if i >= 0:
                    times[c][name].append(clock() - begin[c])
        if abs(said[0] / said[1] - 1) > 1e-4:
            raise RuntimeError(f"step {i + 3}: losses {said} disagree")
    out = {}
    for c, t in times.items():
        both = zip(t["lins"], t["plain"], strict=True)
        out[c] = (spread([a / b for a, b in both]), statistics.median(t["plain"]))
    return out


class _Chain(nn.Module):
    """Units that do next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(nn.Linear(8, 8) for _ in range(_UNITS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.units:
            x = unit(x)
        return x


def hook_seconds(rounds: int) -> tuple[Spread, Spread]:
    """Seconds that wrapping adds to a unit's forward, and to its backward."""
    plain, wrapped = _Chain(), _Chain()
    lins.lins_shard(wrapped, lins.init_mesh((1, 1)), "P=1 G=1 OS=1")
    x = torch.ones(4, 8)

    def run(model: nn.Module, clear: Callable[[], object]) -> tuple[float, float]:
        begin = time.perf_counter()
        y = model(x).sum()
        middle = time.perf_counter()
        y.backward()
        end = time.perf_counter()
        clear()
        return middle - begin, end - middle

    added: tuple[list[float], list[float]] = ([], [])
    for i in range(-3, rounds):
        a = run(plain, plain.zero_grad)
        b = run(wrapped, wrapped.zero_grad)
        if i >= 0:
            for values, before, after in zip(added, a, b, strict=True):
                values.append((after - before) / _UNITS)
    return spread(added[0]), spread(added[1])
