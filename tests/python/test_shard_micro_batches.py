"""How far the gradient of each micro-batch is reduced, and what it is divided by."""

import functools

import lins
import models
import pytest
from agreement import agree, mean_gradients, sharded_gradients, whole_loss, whole_stack
from models import AXES, shard


def records(model, mesh, count, divisor=None):
    out = []
    for m in range(count):
        with lins.trace() as t, lins.micro_batch(model, index=m, count=count, divisor=divisor):
            models.loss_of(model, *models.batch(0, m, mesh.rank, True), True).backward()
        out.append([(r.op, r.axes, r.unit) for r in t.records if r.role == "reduce"])
    return out


@pytest.mark.parametrize(
    "plan, each, last",
    [
        ("ddp", [], [("all_reduce", "node,gpu")]),
        ("zero1", [], [("reduce_scatter", "gpu"), ("reduce_scatter", "node")]),
        ("zero2", [("reduce_scatter", "gpu"), ("reduce_scatter", "node")], []),
        ("hsdp", [("reduce_scatter", "gpu")], [("all_reduce", "node")]),
        ("P=1 G=2x1 OS=4", [("reduce_scatter", "gpu")], [("reduce_scatter", "node")]),
    ],
)
def test_micro_batches_before_the_last_reduce_no_further_than_g(plan, each, last):
    def expand(pairs):
        # As few steps as the planner likes over these axes; one flattened step is as good as two.
        return {axis for _, axes in pairs for axis in axes.split(",")}

    def check(mesh):
        model = shard(whole_stack(depth=1), mesh, plan)
        out = records(model, mesh, 3)
        for m, got in enumerate(out):
            want = each + (last if m == 2 else [])
            by_unit = {unit: [r[:2] for r in got if r[2] == unit] for unit in ("blocks.0", "root")}
            for unit, steps in by_unit.items():
                assert expand(steps) == expand(want), (plan, m, unit, steps)
                kinds = {kind for kind, _ in steps}
                assert bool(kinds) == bool(want)
        return len(out[2])

    assert set(lins.testing.run((2, 2), AXES, check)) != {0}


def test_the_divisor_replaces_ranks_times_micro_batches():
    def check(mesh):
        out = []
        for divisor in (None, 1, 2):
            model = shard(whole_stack(), mesh, "zero3")
            records(model, mesh, 2, divisor)
            out.append(models.gradients(model))
        return out

    for mean, plain, half in lins.testing.run((2, 2), AXES, check):
        models.assert_equal({n: g * 8 for n, g in mean.items()}, plain)
        models.assert_equal({n: g * 2 for n, g in half.items()}, plain)


def test_two_forwards_of_the_root_before_one_backward():
    def loss(model, rank):
        return whole_loss(model, rank) + 2 * whole_loss(model, rank + 1)

    agree(
        functools.partial(sharded_gradients, whole_stack, loss),
        functools.partial(mean_gradients, whole_stack, loss),
    )


def test_two_backwards_of_two_forwards_are_two_micro_batches():
    def check(mesh, plan):
        model = shard(whole_stack(), mesh, plan)
        losses = [whole_loss(model, mesh.rank), whole_loss(model, mesh.rank + 1)]
        for i, loss in enumerate(losses):
            with lins.micro_batch(model, index=i, count=2):
                loss.backward()
        return models.gradients(model)

    def alone():
        out = mean_gradients(
            whole_stack, lambda model, rank: whole_loss(model, rank) + whole_loss(model, rank + 1)
        )
        return {n: g / 2 for n, g in out.items()}

    agree(check, alone)
