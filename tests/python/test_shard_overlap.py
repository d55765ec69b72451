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
# Seconds of a block's forward, and of its backward. A busy machine may start a thread later than
# that: what has not met is looked for again with more time.
COMPUTE = (0.01, 0.04, 0.16)


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


def observe(mesh, policy, seconds=COMPUTE[0], steps=3, held=None, **options):
    """[(role, unit, interval)] of collectives, [(unit, phase, interval)] of compute.

    Every collective, or those of one role, is held back, so that its interval is nearly as long as
    a compute's.
    """
    compute = []

    def log(name, phase):
        start = time.monotonic()
        time.sleep(seconds)
        compute.append((name, phase, (start, time.monotonic())))

    model = models.Stack(depth=DEPTH)
    model.blocks = nn.ModuleList(SlowBlock(f"blocks.{i}", log) for i in range(DEPTH))
    lins.lins_shard(models.fill(model, False), mesh, policy, **options)
    opt = lins.AdamW(model)
    with lins.testing.delay(role=held, seconds=0.8 * seconds), lins.trace() as t:
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


def missing(policy, wanted, **options):
    """What of `wanted` some rank did not do, and all that met on any rank."""
    left, met = [wanted] * 4, set()
    for seconds in COMPUTE:
        seen = lins.testing.run(
            (2, 2), AXES, lambda mesh, s=seconds: under_way(*observe(mesh, policy, s, **options))
        )
        left = [rest - found for rest, found in zip(left, seen, strict=True)]
        met = met.union(*seen)
        if not any(left):
            break
    return set().union(*left), met


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
    assert missing(policy, wanted, **options)[0] == set()


@pytest.mark.parametrize("policy", ["zero3", "ddp", "zero1", "P=2 G=2 OS=4"])
@pytest.mark.parametrize("family", ["planned", "paper"])
def test_nothing_runs_beside_compute_without_overlap(policy, family):
    def check(mesh):
        collectives, compute = observe(mesh, policy, steps=2, family=family, overlap=False)
        assert len(compute) == 2 * 2 * DEPTH and len(collectives) >= 2 * (DEPTH + 1)
        return under_way(collectives, compute)

    assert lins.testing.run((2, 2), AXES, check) == [set()] * 4


def test_updates_are_waited_for_without_overlap_update():
    left, met = missing("zero1", REDUCE, overlap_update=False)
    assert left == set() and {m for m in met if m[0] == "update"} == set()


def test_without_prefetch_no_gather_runs_beside_compute():
    # A gather that is held back, and waited for, would end with the reduction begun before it.
    left, met = missing("zero3", REDUCE, prefetch=0, held="reduce")
    assert left == set() and {m for m in met if m[0] == "gather"} == set()


def test_deeper_prefetch_reaches_further():
    # Two units ahead; gathers follow each other, so with one ahead this cannot be.
    far = {("gather", "blocks.2", "blocks.0", "forward")}
    left, _ = missing("zero3", far, prefetch=2)
    _, met = missing("zero3", AHEAD, prefetch=1)
    assert left == set() and not met & far
