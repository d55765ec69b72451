"""Training steps that broke other systems, on small inputs with the right answers.

Numbers in comments are those of the list of known cases; 24 to 27 are in
test_known_cases_parameters.py, 35 in test_shard_steady_state.py.
"""

import functools
import logging
import math

import lins
import models
import pytest
import torch
from agreement import (
    PLANS,
    SHAPES,
    agree,
    everywhere,
    mean_gradients,
    sharded_gradients,
    whole_loss,
    whole_stack,
)
from models import ADAM, AXES, SIGN_DESCENT, Stack, shard
from torch import nn
from torch.utils.checkpoint import checkpoint

# Case 20

PLANS_OF_128 = ["ddp", "zero3", "paro-igg paper"]


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1)], ids=str)
def test_meshes_with_axes_of_one_and_128_micro_batches_double_nothing(shape):
    ranks = shape[0] * shape[1]
    options = {"whole": True, "micro_batches": 128, "steps": 1, "settings": SIGN_DESCENT}
    make = functools.partial(Stack, depth=1, d=2, whole=True)
    want_grads, want = models.train_alone(ranks, model=make(), **options)

    def check(mesh):
        return [models.train(mesh, p, model=make(), **options) for p in PLANS_OF_128]

    for results in lins.testing.run(shape, AXES, check):
        for grads, params in results:
            models.assert_equal(grads[0], want_grads[0])
            models.assert_equal(params, want)


def test_one_rank_neither_communicates_nor_aliases():
    def check(mesh):
        model = lins.lins_shard(whole_stack(), mesh, "zero3")
        with lins.trace() as t:
            models.backward(model, 0, 0, 2, whole=True)
            grads = models.gradients(model)
            models.backward(model, 1, 0, 1, whole=True)
        assert t.records == []
        fresh = whole_stack()
        for m in range(2):
            models.loss_of(fresh, *models.batch(0, m, 0, True), True).backward()
        models.assert_equal(grads, {n: p.grad / 2 for n, p in fresh.named_parameters()})

    lins.testing.run((1, 1), AXES, check)


# Case 21


def test_a_shard_group_of_size_one_still_reduces_over_the_replicas():
    def check(mesh):
        model = lins.lins_shard(whole_stack(depth=1), mesh, "P=1 G=1 OS=1")
        counts = []
        for m in range(3):
            with lins.trace() as t, lins.micro_batch(model, index=m, count=3):
                whole_loss(model, mesh.rank).backward()
            counts.append(sum(r.role == "reduce" for r in t.records))
        return counts

    # One all-reduce for each unit, after the last micro-batch only.
    assert lins.testing.run((4, 1), AXES, check) == [[0, 0, 2]] * 4
    agree(
        functools.partial(sharded_gradients, whole_stack, whole_loss),
        functools.partial(mean_gradients, whole_stack, whole_loss),
        shape=(4, 1),
    )


# Case 22


@pytest.mark.parametrize("micro_batches", [1, 2, 5])
@pytest.mark.parametrize("shape", [(2, 2), (2, 3)], ids=str)
def test_replicas_are_reduced_over_once_per_step_with_every_micro_batch_in_it(shape, micro_batches):
    want, _ = models.train_alone(
        shape[0] * shape[1], steps=1, micro_batches=micro_batches, whole=True
    )
    # G is on every node: a gradient crosses nodes once a step, however many micro-batches.
    plans = ["ddp", "zero1", "hsdp", "paro-nig", "paro-iig", "zero1 paper", "hsdp paper"]

    def check(mesh, plan):
        model = shard(whole_stack(), mesh, plan)
        with lins.trace() as t:
            models.backward(model, 0, mesh.rank, micro_batches, whole=True)
        crossing = [
            r.unit
            for r in t.records
            if r.role == "reduce" and len({rank // shape[1] for rank in r.group}) > 1
        ]
        assert crossing == ["blocks.1", "blocks.0", "root"], plan
        return models.gradients(model)

    agree(check, lambda: want[0], shape, plans)


# Case 23


@pytest.mark.parametrize("policy", ["zero2", "paro-igg", "ddp"])
def test_bucket_and_unit_sizes_never_change_values(policy):
    options = {"whole": True, "micro_batches": 2, "settings": SIGN_DESCENT}
    want_grads, want = models.train_alone(4, **options)
    spec = lins.ModelSpec(
        units=[lins.Unit("all", sum(p.numel() for p in Stack().parameters()))],
        state_bytes={"param": 4, "grad": 4, "master": 0, "moments": 8},
    )
    profile = lins.Profile.model(nodes=2, gpus_per_node=2)
    cluster = lins.Cluster(nodes=2, gpus_per_node=2, profile=profile)
    units = ["block", "linear", lambda m: isinstance(m, models.Block | nn.Linear), lambda m: True]

    def check(mesh):
        out = []
        for bucket in (4, 52, 2**20):  # bytes: one element, 13 of them, everything
            plan = lins.Plan.uniform(
                spec, cluster, policy=policy, family="paper", bucket_bytes=bucket
            )
            out += [models.train(mesh, plan, units=u, **options) for u in units]
        return out

    for results in lins.testing.run((2, 2), AXES, check):
        for grads, params in results:
            models.assert_equal(grads[-1], want_grads[-1])
            models.assert_equal(params, want)


# Case 28


@pytest.mark.parametrize("overlap", [True, False])
def test_a_checkpointed_unit_called_twice_gathers_once_per_use(overlap):
    class Twice(Stack):
        def forward(self, x):
            x = self.inp(x)
            for _ in range(2):
                x = checkpoint(self.blocks[0], x, use_reentrant=False)
            return self.head(x)

    make = functools.partial(Twice, depth=1, whole=True)

    def check(mesh, plan):
        model = shard(make(), mesh, plan, overlap=overlap)
        with lins.trace() as t:
            loss = whole_loss(model, mesh.rank)
        forward = sum(r.role == "gather" and r.unit == "blocks.0" for r in t.records)
        with lins.trace() as t:
            loss.backward()
        backward = sum(r.role == "gather" and r.unit == "blocks.0" for r in t.records)
        assert 1 <= forward <= 2
        assert 1 <= backward <= 2
        return models.gradients(model)

    agree(
        check,
        lambda: mean_gradients(make, whole_loss),
        plans=["paro-iig", "hsdp", "zero3", "paro-igg paper"],
    )


# Case 29


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_making_the_state_does_not_advance_adams_step(shape):
    def alone():
        return models.train_alone(shape[0] * shape[1], steps=1, whole=True)[1]

    def check(mesh, plan):
        model = shard(whole_stack(), mesh, plan)
        opt = lins.AdamW(model, **ADAM)
        for s in lins.states(model).values():  # made with the optimizer, and zero
            assert not s.exp_avg.full_tensor().any() and not s.exp_avg_sq.full_tensor().any()
        opt.step()  # no gradients yet: nothing changes, the step count included
        opt.zero_grad()
        models.backward(model, 0, mesh.rank, whole=True)
        opt.step()
        return models.parameters(model)

    agree(check, alone, shape)


# Case 30


def test_an_update_ends_before_the_next_gather_begins():
    def check(mesh):
        model = lins.lins_shard(whole_stack(), mesh, "P=2x1 G=2x1 OS=4", units="linear")
        opt = lins.AdamW(model, **SIGN_DESCENT)
        models.backward(model, 0, mesh.rank, whole=True)
        with lins.trace() as t, lins.testing.delay(role="update", seconds=0.01):
            opt.step()
            models.backward(model, 1, mesh.rank, whole=True)
        updates = {r.unit: r.end for r in t.records if r.role == "update"}
        gathers = [r for r in t.records if r.role == "gather"]
        assert updates and gathers
        for r in gathers:
            assert updates[r.unit] <= r.start

    lins.testing.run((2, 2), AXES, check)


class Reversed(Stack):
    """Runs its blocks from last to first: updates come in the other order."""

    def forward(self, x):
        x = self.inp(x)
        for block in reversed(self.blocks):
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_forwards_in_another_order_than_the_updates_see_them_complete(prefetch):
    options = {"whole": True, "steps": 3, "settings": SIGN_DESCENT}
    make = functools.partial(Reversed, depth=3, whole=True)
    want = models.train_alone(4, model=make(), **options)[1]

    def check(mesh, plan):
        with lins.testing.delay(role="update", seconds=0.003 * (1 + mesh.rank % 2)):
            return models.train(mesh, plan, model=make(), prefetch=prefetch, **options)[1]

    agree(check, lambda: want)


# Case 31


@pytest.mark.parametrize("role", ["gather", "reduce", "update", "other"])
def test_a_delay_before_any_collective_changes_no_value(role):
    options = {"whole": True, "steps": 2, "micro_batches": 2, "settings": SIGN_DESCENT}
    _, want = models.train_alone(4, **options)

    def check(mesh, plan):
        with lins.testing.delay(role=role, seconds=0.002 * mesh.rank):
            return models.train(mesh, plan, prefetch=2, **options)[1]

    plans = ["zero1", "zero3", "paro-iig", "paro-nig paper"]
    for results in everywhere(check, plans=plans):
        for plan, got in results.items():
            models.assert_equal(got, want, plan)


@pytest.mark.parametrize("plan", ["zero2", "zero3"])
def test_peak_buffers_do_not_grow_with_depth(plan):
    def check(mesh):
        out = []
        for depth in (4, 12):
            model = lins.lins_shard(Stack(depth=depth), mesh, plan, prefetch=1)
            for step in range(2):
                models.backward(model, step, mesh.rank, 2)
            memory = lins.memory(model)
            out.append((memory["peak_buffers"], memory["peak_leases"]))
        return out

    for few, many in lins.testing.run((2, 2), AXES, check):
        # When buffers are given back depends on timing: a bound by units, which are 4 and 12.
        unit = 4 * (2 * 25 + 5 + 1)
        assert many[1] <= few[1] + 2
        assert many[0] <= few[0] + 2 * unit


# Case 32


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (2, 3)], ids=str)
def test_the_norm_of_3_and_4_is_5_with_replicas_too(shape):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return (self.w * x).sum()

    def check(mesh, plan):
        model = shard(Two(), mesh, plan)
        model(torch.tensor([3.0, 4.0])).backward()
        first = lins.clip_grad_norm_(model, 2.5).item()
        second = lins.clip_grad_norm_(model, 100.0).item()  # of clipped gradients
        return first, second

    for results in everywhere(check, shape):
        for plan, (first, second) in results.items():
            assert first == 5.0, plan
            assert second == pytest.approx(2.5, rel=1e-5), plan


# Case 33


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_overflow_on_one_rank_skips_the_step_on_all_and_is_logged(shape, value, caplog):
    want = models.train_alone(shape[0] * shape[1], steps=1, whole=True)[1]

    def check(mesh, plan):
        model = shard(whole_stack(), mesh, plan)
        opt = lins.AdamW(model, **ADAM)
        before = models.parameters(model)
        loss = whole_loss(model, mesh.rank)
        (loss * value if mesh.rank == 2 else loss).backward()
        opt.step()
        assert opt.skipped_steps == 1
        models.assert_equal(models.parameters(model), before, plan)
        opt.zero_grad()
        whole_loss(model, mesh.rank).backward()
        opt.step()  # Adam's first
        assert opt.skipped_steps == 1
        return models.parameters(model)

    with caplog.at_level(logging.WARNING, logger="lins"):
        agree(check, lambda: want, shape)
    lines = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert len(lines) == shape[0] * shape[1] * len(PLANS)
    assert all("not finite" in line for line in lines)


# Case 34


@pytest.mark.parametrize("tokens", [[[3], [5]], [[3, 1], [5, 7]]], ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (2, 1)], ids=str)
def test_a_loss_divided_by_the_global_token_count_equals_the_single_process(shape, tokens):
    # Valid tokens by rank and micro-batch; their sum is a power of two, so all is exact.
    total = sum(map(sum, tokens))
    parts = [
        [models.batch(0, m, rank, True, rows=n) for m, n in enumerate(counts)]
        for rank, counts in enumerate(tokens)
    ]
    model = whole_stack()
    x, y = (torch.cat(t) for t in zip(*(part for mine in parts for part in mine), strict=True))
    (models.loss_of(model, x, y, True) / total).backward()
    want = {n: p.grad for n, p in model.named_parameters()}

    def check(mesh, plan):
        model = shard(whole_stack(), mesh, plan)
        for m, part in enumerate(parts[mesh.rank]):
            with lins.micro_batch(model, index=m, count=len(tokens[0]), divisor=1):
                (models.loss_of(model, *part, True) / total).backward()
        return models.gradients(model)

    agree(check, lambda: want, shape)
