"""Communication runs while units compute, and never does where overlap is switched off: intervals
of the trace against intervals of the model's own compute."""

import time

import lins
import models
import pytest
import torch
from models import AXES
from torch import nn

DEPTH = 3
COMPUTE = 0.01  # seconds of a block's forward, and of its backward
DELAY = 0.008  # of every collective: its interval is at least so long


class Slow(torch.autograd.Function):
    """The identity; forward and backward take their time, of which they tell."""

    @staticmethod
    def forward(ctx, x, name, log):
        ctx.name, ctx.log = name, log
        log(name, "forward")
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.log(ctx.name, "backward")
        return grad.clone(), None, None


class SlowBlock(nn.Module):
    def __init__(self, name, log):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.name, self.log = name, log

    def forward(self, x):
        return x + Slow.apply(self.linear(x), self.name, self.log)


def observe(mesh, policy, steps=4, **options):
    """[(role, unit, interval)] of collectives, [(unit, phase, interval)] of compute."""
    compute = []

    def log(name, phase):
        start = time.monotonic()
        time.sleep(COMPUTE)
        compute.append((name, phase, (start, time.monotonic())))

    model = models.Stack(depth=DEPTH)
    model.blocks = nn.ModuleList(SlowBlock(f"blocks.{i}", log) for i in range(DEPTH))
    lins.lins_shard(models.fill(model, False), mesh, policy, **options)
    opt = lins.AdamW(model)
    with lins.testing.delay(seconds=DELAY), lins.trace() as t:
        for step in range(steps):
            models.backward(model, step, mesh.rank)
            opt.step()
            opt.zero_grad()
    return [(r.role, r.unit, (r.start, r.end)) for r in t.records if r.role != "other"], compute


def meet(a, b):
    return a[0] < b[1] and b[0] < a[1]


def under_way(collectives, compute):
    """{(role, unit of the collective, unit that computes, its phase)} of what meets."""
    return {
        (role, unit, other, phase)
        for role, unit, a in collectives
        for other, phase, b in compute
        if meet(a, b)
    }


# What a rank must be seen to do beside its compute, in some step at least.
AHEAD = {
    ("gather", "blocks.1", "blocks.0", "forward"),
    ("gather", "blocks.2", "blocks.1", "forward"),
}
BACK = {
    ("gather", "blocks.1", "blocks.2", "backward"),
    ("gather", "blocks.0", "blocks.1", "backward"),
}
REDUCE = {
    ("reduce", "blocks.2", "blocks.1", "backward"),
    ("reduce", "blocks.1", "blocks.0", "backward"),
}
UPDATE = {("update", "blocks.1", "blocks.0", "forward")}


@pytest.mark.parametrize(
    "policy, options, wanted",
    [
        ("zero3", {}, AHEAD | BACK | REDUCE),
        ("ddp", {}, REDUCE),
        ("zero1", {}, REDUCE | UPDATE),
        ("zero1", {"family": "paper"}, REDUCE | UPDATE),
        ("P=2 G=2 OS=4", {}, AHEAD | BACK | REDUCE),
    ],
    ids=["zero3", "ddp", "zero1", "zero1 paper", "hierarchical"],
)
def test_collectives_run_while_units_compute(policy, options, wanted):
    def check(mesh):
        return wanted - under_way(*observe(mesh, policy, **options))

    assert lins.testing.run((2, 2), AXES, check) == [set()] * 4


@pytest.mark.parametrize("policy", ["zero3", "ddp", "zero1", "P=2 G=2 OS=4"])
@pytest.mark.parametrize("family", ["planned", "paper"])
def test_nothing_runs_beside_compute_without_overlap(policy, family):
    def check(mesh):
        collectives, compute = observe(mesh, policy, steps=2, family=family, overlap=False)
        assert len(compute) == 2 * 2 * DEPTH and len(collectives) >= 2 * (DEPTH + 1)
        return under_way(collectives, compute)

    assert lins.testing.run((2, 2), AXES, check) == [set()] * 4


def test_updates_are_waited_for_without_overlap_update():
    def check(mesh):
        met = under_way(*observe(mesh, "zero1", steps=3, overlap_update=False))
        return {m for m in met if m[0] == "update"}, bool(met)

    assert lins.testing.run((2, 2), AXES, check) == [(set(), True)] * 4


def test_without_prefetch_no_gather_runs_beside_compute():
    def check(mesh):
        met = under_way(*observe(mesh, "zero3", steps=2, prefetch=0))
        return {m for m in met if m[0] == "gather"}, bool(met)

    assert lins.testing.run((2, 2), AXES, check) == [(set(), True)] * 4


def test_deeper_prefetch_reaches_further():
    def check(mesh):
        met = under_way(*observe(mesh, "zero3", prefetch=2))
        # Gathers of one role follow each other: the second one ahead begins within two blocks.
        return ("gather", "blocks.2", "blocks.0", "forward") in met

    assert lins.testing.run((2, 2), AXES, check) == [True] * 4
