"""Checks that ranks, under several plans, agree with one process: shared by tests of sharding."""

import functools

import lins
import models
from models import AXES, Stack, shard

# Legal on every mesh of nodes and GPUs; " paper" is the family.
PLANS = ["ddp", "zero1", "zero2", "zero3", "hsdp", "paro-nig", "paro-igg"]
PLANS += [f"{p} paper" for p in ("zero1", "paro-nig", "paro-igg")]

SHAPES = [(2, 2), (1, 4), (2, 3)]


def everywhere(check, shape=(2, 2), plans=PLANS):
    """Results of check(mesh, plan) by rank, each by plan."""
    return lins.testing.run(shape, AXES, lambda mesh: {plan: check(mesh, plan) for plan in plans})


def agree(check, alone, shape=(2, 2), plans=PLANS, close=False):
    """check(mesh, plan) gives on every rank what alone() gives."""
    want = alone()
    assert_ = models.assert_close if close else models.assert_equal
    for rank, results in enumerate(everywhere(check, shape, plans)):
        for plan, got in results.items():
            assert_(got, want, f"{plan} rank {rank}")


def mean_gradients(make, loss, ranks=4):
    """Gradients of a single process: the mean over ranks of loss(model, rank)."""
    model = make()
    for rank in range(ranks):
        loss(model, rank).backward()
    return {n: None if p.grad is None else p.grad / ranks for n, p in model.named_parameters()}


def sharded_gradients(make, loss, mesh, plan, **options):
    model = shard(make(), mesh, plan, **options)
    loss(model, mesh.rank).backward()
    lins.clip_grad_norm_(model, 1e30)  # finds out what no rank has used
    return models.gradients(model)


def whole_loss(model, rank):
    return models.loss_of(model, *models.batch(0, 0, rank, True), True)


whole_stack = functools.partial(Stack, whole=True)
