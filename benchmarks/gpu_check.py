"""What only a GPU can show: one device is enough, `make gpu-check` builds and runs it.

    python benchmarks/gpu_check.py --kernels build-gpu/tests/kernels_test [--json gpu.json]
    python benchmarks/gpu_check.py --only bandwidth,step

kernels    the kernels beside their twins on the host: the same bits
bandwidth  of each kernel, beside a copy on the device, as percent of what the copy moves
plans      every preset and a few plans, ranks as threads that share the device: exact results
memory     what a model keeps on the device, beside what lins.memory says
overlap    copies of offloaded optimizer states beside their updates
step       a training step of one process beside FSDP2's
several    where there is more than one GPU: steps, and how much of NCCL lies under compute

Prints a table and writes JSON; exit code 1 where a check fails, but not where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lins
import torch
from gpu_overlap import LR, covered, device_spans, fsdp2, llama, stepper, tokens
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity, profile

Row = dict[str, Any]
_DEVICE = "cuda"


def main() -> None:
    """Runs the checks that were asked for."""
    p = argparse.ArgumentParser(description="Checks of lins on a GPU.")
    p.add_argument("--kernels", help="the test program of the kernels")
    p.add_argument("--only", default="", help="checks, separated by commas")
    p.add_argument("--mib", type=int, default=1024, help="of fp32 parameters, for bandwidth")
    p.add_argument("--json", help="file for the rows")
    args = p.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here")
    checks: dict[str, Callable[[], list[Row]]] = {
        "kernels": lambda: kernels(args.kernels),
        "bandwidth": lambda: bandwidth(args.mib),
        "plans": plans,
        "memory": memory,
        "overlap": overlap,
        "step": step,
        "several": several,
    }
    wanted = [c for c in args.only.split(",") if c] or list(checks)
    rows = [about()]
    for name in wanted:
        started = time.monotonic()
        try:
            found = checks[name]()
        except Exception as e:
            found = [{"what": f"{type(e).__name__}: {e}", "ok": False}]
        for row in found:
            rows.append({"check": name, **row})
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    show(rows[1:])
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)
    sys.exit(any(row.get("ok") is False for row in rows))


def about() -> Row:
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "lins": lins.__version__,
    }


def show(rows: list[Row]) -> None:
    table = Table("check", "what", "value", "unit", "goal", "")
    for row in rows:
        ok, goal = row.get("ok"), row.get("goal")
        value = row.get("value")
        verdict = "" if ok is None else ("ok" if ok else "FAILED")
        if ok is None and goal is not None:
            verdict = "met" if value >= goal else "missed"
        shown = (
            f"{value:.4g}" if isinstance(value, float) else str(value if value is not None else "")
        )
        table.add_row(
            row["check"], row["what"], shown, row.get("unit", ""), str(goal or ""), verdict
        )
    Console(width=120).print(table)


def kernels(program: str | None) -> list[Row]:
    """The C++ tests, one row for each."""
    if not program:
        return [{"what": "no --kernels program given", "ok": False}]
    run = subprocess.run([program], capture_output=True, text=True)
    rows: list[Row] = []
    for line in run.stdout.splitlines():
        for mark, ok in (("[       OK ] ", True), ("[  FAILED  ] ", False)):
            if line.startswith(mark) and "ms)" in line:
                rows.append({"what": line[len(mark) :].split(" (")[0], "ok": ok})
    if run.returncode and all(row["ok"] for row in rows):
        rows.append({"what": f"exit code {run.returncode}: {run.stderr[-500:]}", "ok": False})
    if not any("OnDevice" in row["what"] for row in rows):
        rows.append({"what": "no test ran on the device", "ok": False})
    return rows


class Flat(nn.Module):
    """One parameter whose gradient is a random constant."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.randn(numel, device=_DEVICE))

    def forward(self) -> torch.Tensor:
        return (self.p * torch.randn_like(self.p)).sum()


def seconds_of(fn: Callable[[], object], contains: str, rounds: int = 9) -> float:
    """The median time on the device of the kernel whose name contains a word."""
    fn()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(rounds):
            fn()
        torch.cuda.synchronize()
    times = [e.device_time for e in trace.events() if contains in e.name and e.device_time > 0]
    if not times:
        seen = sorted({e.name for e in trace.events()})
        raise RuntimeError(f"no kernel named *{contains}* ran; these did: {seen}")
    return statistics.median(times) * 1e-6


def bandwidth(mib: int) -> list[Row]:
    """Bytes that must be read and written once, over the time on the device."""
    numel = mib << 18
    a, b = torch.randn(numel, device=_DEVICE), torch.empty(numel, device=_DEVICE)
    b.copy_(a)
    torch.cuda.synchronize()
    times = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        b.copy_(a)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    copy = 8 * numel / statistics.median(times)
    rows: list[Row] = [{"what": "copy on the device", "value": copy / 1e9, "unit": "GB/s"}]
    del a, b
    bf16 = {"param_dtype": torch.bfloat16}
    rules: list[tuple[str, Callable[[Any], Any], dict[str, Any], str, int]] = [
        ("AdamW fp32", lambda m: lins.AdamW(m), {}, "Elementwise", 28),
        ("AdamW bf16 + fp32 masters", lambda m: lins.AdamW(m), bf16, "Elementwise", 28),
        ("AdamW8bit", lambda m: lins.AdamW8bit(m), {}, "Adam8bitKernel", 16),
        ("SGD with momentum", lambda m: lins.SGD(m, momentum=0.9), {}, "Elementwise", 20),
        ("Lion", lambda m: lins.Lion(m), {}, "Elementwise", 20),
    ]
    mesh = lins.init_mesh((1, 1))
    for name, make, options, kernel, size in rules:
        model = lins.lins_shard(Flat(numel), mesh, "zero1", units=lambda m: False, **options)
        opt = make(model)
        model().backward()
        seconds = seconds_of(opt.step, kernel)
        rows.append(_share(name, size * numel / seconds, copy))
        if name == "AdamW fp32":

            def norm(model: nn.Module = model, kind: list[float] = [1.0]) -> None:  # noqa: B006
                kind[0] = 3.0 - kind[0]  # another one is worked out anew
                lins.clip_grad_norm_(model, 1e30, kind[0])

            rows.append(_share("gradient norm", 4 * numel / seconds_of(norm, "PartsKernel"), copy))
        del model, opt
        torch.cuda.empty_cache()
    return rows


def _share(name: str, rate: float, copy: float) -> Row:
    return {
        "what": f"{name}, {rate / 1e9:.0f} GB/s",
        "value": 100 * rate / copy,
        "unit": "% of copy",
        "goal": 90,
    }


class Blocks(nn.Module):
    """Whole numbers throughout: all sums are exact, whatever their order."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.head = nn.Linear(5, 2)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randint(-1, 2, p.shape, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


_PLANS = [
    *("ddp", "zero1", "zero2", "zero3", "fsdp2", "hsdp", "mics:2", "zero++:2"),
    *("P=1x1 G=2x1 OS=2x2", "P=2x1 G=2x1 OS=2x2", "P=2x1 G=2x2 OS=2x2"),
]
_SIGN = {"lr": 1.0, "betas": (0.0, 0.0), "eps": 1e-30, "weight_decay": 0.0}


def _inputs(rank: int, index: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + 10 * index + rank)
    return torch.randint(-1, 2, (2, 5), generator=generator).float().to(_DEVICE)


def plans() -> list[Row]:
    """Two steps of each plan on 2 x 2 ranks, beside one process that has all the data."""
    rows = []
    for count in (1, 2):
        expected = _reference(count)
        for policy in _PLANS:
            for overlap in (True, False):
                got = lins.testing.run(
                    (2, 2),
                    ("node", "gpu"),
                    lambda mesh, p=policy, c=count, o=overlap: _train(mesh, p, c, o),
                    timeout=60.0,
                    device=_DEVICE,
                )
                same = all(
                    torch.equal(values[name], expected[name]) for values in got for name in expected
                )
                what = f"{policy}, M={count}" + ("" if overlap else ", no overlap")
                rows.append({"what": what, "ok": same})
    return rows


def _reference(count: int) -> dict[str, torch.Tensor]:
    model = Blocks().to(_DEVICE)
    opt = torch.optim.AdamW(model.parameters(), **_SIGN)
    for step in range(2):
        for index in range(count):
            for rank in range(4):
                model(_inputs(rank, index, step)).sum().backward()
        opt.step()
        opt.zero_grad()
    return {n: p.detach().cpu() for n, p in model.named_parameters()}


def _train(mesh: Any, policy: str, count: int, overlap: bool) -> dict[str, torch.Tensor]:
    model = lins.lins_shard(
        Blocks().to(_DEVICE),
        mesh,
        policy,
        units=lambda m: isinstance(m, nn.Linear),
        overlap=overlap,
    )
    opt = lins.AdamW(model, **_SIGN)
    for step in range(2):
        for index in range(count):
            with lins.micro_batch(model, index=index, count=count):
                model(_inputs(mesh.rank, index, step)).sum().backward()
        opt.step()
        opt.zero_grad()
    with lins.unsharded(model):
        return {n: p.detach().cpu().clone() for n, p in model.named_parameters()}


def memory() -> list[Row]:
    """What a step leaves on the device, in bytes."""
    rows = []
    mesh = lins.init_mesh((1, 1))
    for dtype in (None, torch.bfloat16):
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        model = lins.lins_shard(Flat(64 << 20), mesh, "zero1", param_dtype=dtype)
        opt = lins.AdamW(model)
        model().backward()
        opt.step()
        opt.zero_grad()
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
        said = lins.memory(model)
        kept = said["param"] + said["grad"] + said["optim"]
        rows.append(
            {
                "what": f"kept beside lins.memory, {dtype or 'fp32'} parameters",
                "value": held / kept,
                "unit": "times",
                "ok": 0.98 < held / kept < 1.02,
            }
        )
        del model, opt
    return rows


def overlap() -> list[Row]:
    """A step whose masters and moments are in host memory goes through them in chunks."""
    model = lins.lins_shard(
        Flat(128 << 20),
        lins.init_mesh((1, 1)),
        "zero1",
        param_dtype=torch.bfloat16,
        offload_optimizer=True,
    )
    opt = lins.AdamW(model)
    model().backward()
    opt.step()
    spans = device_spans(opt.step)
    copies = [s for name, s in spans if "memcpy" in name.lower()]
    kernels = [s for name, s in spans if "Elementwise" in name]
    return [
        {
            "what": "updates of offloaded states under copies",
            "value": 100 * covered(kernels, copies),
            "unit": "% of kernels",
            "goal": 90,
        },
        {"what": "both ran on the device", "ok": bool(copies and kernels)},
    ]


def several() -> list[Row]:
    """benchmarks/gpu_overlap.py on all GPUs."""
    count = torch.cuda.device_count()
    if count < 2:
        return []
    script = Path(__file__).with_name("gpu_overlap.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, "--nproc-per-node", str(count), str(script)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not found:
        return [{"what": f"exit code {run.returncode}: {run.stderr[-500:]}", "ok": False}]
    rows: list[Row] = []
    for row in found:
        shown = f"{row['what']}, NCCL under compute, step {row['step_ms']:.1f} ms"
        rows.append({"what": shown, "value": 100 * row["nccl_hidden"], "unit": "%"})
    return rows


def step() -> list[Row]:
    """Wall time of steps that follow each other, medians over interleaved rounds."""
    import torch.distributed as dist

    mesh = lins.init_mesh((1, 1))
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    batch = tokens()
    ours = lins.lins_shard(llama(), mesh, "zero3")
    steps = {
        "fsdp2": stepper(*fsdp2(llama()), batch),
        "lins": stepper(ours, lins.AdamW(ours, lr=LR), batch),
    }

    times: dict[str, list[float]] = {"fsdp2": [], "lins": []}
    for i in range(12):
        for name, run in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(3):
                value = run()
            torch.cuda.synchronize()
            if i > 1:
                times[name].append((time.perf_counter() - start) / 3)
        last = float(value)
    expected = float(steps["fsdp2"]())
    ratio = statistics.median(f / t for f, t in zip(times["fsdp2"], times["lins"], strict=True))
    return [
        {"what": "FSDP2's time over lins'", "value": ratio, "unit": "times", "goal": 1},
        {
            "what": f"losses agree: {last:.4f}, {expected:.4f} a step later",
            "ok": abs(last - expected) < 0.2,
        },
    ]


if __name__ == "__main__":
    main()
