"""Tables of a run, and which goals it meets."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from training.settings import SAME_LAYOUT, TOLERANCE

Run = dict[str, Any]


class Spread(NamedTuple):
    """Of numbers that rounds gave."""

    median: float
    low: float  # 10th percentile
    high: float  # 90th

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}-{self.high:{spec}})"


def spread(values: list[float]) -> Spread:
    """Median, 10th and 90th percentile; of few values the least and the largest."""
    if len(values) < 2:
        return Spread(*[values[0]] * 3)
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), cuts[0], cuts[-1])


def seconds(run: Run, name: str) -> list[float]:
    """By round: a step is as long as its slowest rank takes."""
    return [max(x) for x in zip(*(r["seconds"][name] for r in run["ranks"]), strict=True)]


def ratios(run: Run, over: str, under: str) -> Spread:
    """Of two candidates' times, round by round."""
    pairs = zip(seconds(run, over), seconds(run, under), strict=True)
    return spread([a / b for a, b in pairs])


def sent(run: Run, name: str) -> float:
    """Bytes from node to node in a step, the busier direction; median of rounds."""
    return statistics.median(
        max(x) for x in zip(*(r["sent"][name] for r in run["ranks"]), strict=True)
    )


def processor(run: Run, name: str) -> float:
    """Seconds of processor time a step and rank: median of rounds, mean of ranks."""
    rounds = zip(*(r["processor"][name] for r in run["ranks"]), strict=True)
    return statistics.median(statistics.fmean(x) for x in rounds)


def losses(run: Run, name: str) -> list[float]:
    """By step: the mean of all ranks."""
    return [
        statistics.fmean(x) for x in zip(*(r["losses"][name] for r in run["ranks"]), strict=True)
    ]


def check(run: Run) -> str:
    """What is wrong with a run: losses that disagree. "" if nothing is."""
    names = [n for n in run["ranks"][0]["losses"] if n != "alone"]
    want = losses(run, names[0])
    for name in names[1:]:
        pairs = zip(losses(run, name), want, strict=True)
        worst = max(abs(a / b - 1) if a == a else float("inf") for a, b in pairs)
        if not worst <= TOLERANCE:
            return (
                f"the losses of {name} differ from those of {names[0]} by {worst:.1e}, "
                f"of which {TOLERANCE:.0e} is rounding"
            )
    return ""


def fits(run: Run, name: str) -> bool:
    """Whether a candidate's placement needs no more memory than the cap."""
    known = run["predictions"].get(SAME_LAYOUT.get(name, name))
    return bool(known and known["fits"])


def print_run(run: Run) -> None:
    """One table: a row for each candidate."""
    s = run["settings"]
    rate = "no link" if not s["interfaces"] else f"{s['gbit'] or 'unlimited'} Gbit/s"
    shape = s["shape"]
    print(
        f"\n### {rate}, M = {s['micro_batches']}\n\n"
        f"{s['nodes']} nodes x {s['per_node']}, dim {shape['dim']} x {shape['layers']} layers, "
        f"{shape['rows']} x {shape['seq_len']} tokens a micro-batch, {s['rounds']} rounds of "
        f"{s['steps']} timed steps, load {run['load']:.1f}. Memory cap "
        f"{run['cap_bytes'] / 1e6:.0f} MB. {run['solved']}\n"
    )
    head = (
        "candidate | step, ms | predicted | processor, ms a rank | MB between nodes | plan's "
        "| peer's time / its | fits"
    )
    print(f"| {head} |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    peers = {v: k for k, v in SAME_LAYOUT.items()}
    for name in run["ranks"][0]["seconds"]:
        p = run["predictions"].get(name, {})
        ms = spread([1e3 * x for x in seconds(run, name)])
        peer = peers.get(name)
        cells = [
            name,
            f"{ms:.0f}",
            f"{p['seconds'] * 1e3:.0f}" if p else "",
            f"{1e3 * processor(run, name):.0f}",
            f"{sent(run, name) / 1e6:.2f}" if s["interfaces"] else "",
            f"{p['node_bytes'] / 1e6:.2f}" if p and s["interfaces"] else "",
            f"{ratios(run, peer, name):.2f}" if peer in run["ranks"][0]["seconds"] else "",
            "" if name == "alone" else "yes" if fits(run, name) else "no",
        ]
        print("| " + " | ".join(cells) + " |")
    for note in run["notes"]:
        print(f"\n{note}")
    print(flush=True)


def goals(run: Run) -> list[tuple[str, str, bool]]:
    """(goal, what was measured, whether it is met)."""
    names = list(run["ranks"][0]["seconds"])
    out = []
    for peer, ours in SAME_LAYOUT.items():
        if peer in names and ours in names:
            least = 1.5 if "fsdp2" in peer or "hsdp" in peer else 1.0
            r = ratios(run, peer, ours)
            out.append((f"{peer} / {ours} >= {least}", f"{r:.2f}", r.median >= least))
    if "lins solved" in names:
        others = [n for n in names if n != "lins solved" and fits(run, n)]
        if others:
            r, name = min((ratios(run, n, "lins solved"), n) for n in others)
            out.append((f"{name} / solved >= 1, the fastest that fits", f"{r:.2f}", r.median >= 1))
    errors = {
        n: p["seconds"] / statistics.median(seconds(run, n)) - 1
        for n, p in run["predictions"].items()
    }
    if errors:
        mean = statistics.fmean(abs(e) for e in errors.values())
        worst = max(errors, key=lambda n: abs(errors[n]))
        said = f"{mean:.1%}, worst {worst} {errors[worst]:+.0%}"
        out.append(("step time predicted within 10 % on average", said, mean <= 0.10))
    if run["settings"]["interfaces"] and errors:
        off = {
            n: sent(run, n) / p["node_bytes"] - 1
            for n, p in run["predictions"].items()
            if p["node_bytes"]
        }
        worst = max(off, key=lambda n: abs(off[n]))
        ok = abs(off[worst]) <= 0.03
        out.append(("bytes between nodes within 3 %", f"worst {worst} {off[worst]:+.1%}", ok))
    return out


def print_goals(runs: list[Run]) -> None:
    """A line for each goal of each run."""
    print("\n### Goals\n\n| link | M | goal | measured | |\n|---|---:|---|---:|---|")
    for run in runs:
        s = run["settings"]
        rate = "none" if not s["interfaces"] else str(s["gbit"] or "unlimited")
        for goal, value, met in goals(run):
            verdict = "met" if met else "**missed**"
            print(f"| {rate} | {s['micro_batches']} | {goal} | {value} | {verdict} |")
