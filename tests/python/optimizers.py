"""A model whose gradients are its data, and training of it by one process and by ranks."""

import lins
import models
import torch
from models import AXES
from torch import nn

PLANS = ["ddp", "zero1", "zero2", "zero3", "hsdp", "P=1 G=2x1 OS=4"]


def alone(make_optimizer, steps=3, ranks=4, after=None):
    """Parameters of one process; gradients are whole numbers without a parameter in them."""
    model = Flat()
    opt = make_optimizer(model)
    for step in range(steps):
        for rank in range(ranks):
            model.loss(step, rank).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= ranks
        opt.step()
        if after:
            after(opt)
        opt.zero_grad()
    return models.clone(model.named_parameters())


class Term(nn.Module):
    """<w, data>: a gradient that is the data, whatever w is."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(shape[0]))

    def forward(self, x):
        return (self.weight * x).sum() + (self.bias * x.sum(-1)).sum()


class Flat(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        self.first = Term(3, 5)
        self.blocks = nn.ModuleList([Term(4, 3), Term(2, 7)])
        models.fill(self, False, seed)

    def forward(self, xs):
        return sum(m(x) for m, x in zip([self.first, *self.blocks], xs, strict=True))

    def loss(self, step, rank):
        generator = torch.Generator().manual_seed(100 * step + rank)
        shapes = [(3, 5), (4, 3), (2, 7)]
        return self([torch.randint(-5, 6, s, generator=generator).float() for s in shapes])


def sharded(mesh, plan, steps=3, make=None, after=None, **settings):
    model = lins.lins_shard(Flat(seed=0), mesh, plan)
    opt = make(model) if make else lins.AdamW(model, **settings)
    for step in range(steps):
        model.loss(step, mesh.rank).backward()
        opt.step()
        if after:
            after(opt)
        opt.zero_grad()
    return models.parameters(model)


def compare(check, want, plans=PLANS, shape=(2, 2)):
    results = lins.testing.run(shape, AXES, lambda mesh: [check(mesh, plan) for plan in plans])
    for rank, by_plan in enumerate(results):
        for plan, got in zip(plans, by_plan, strict=True):
            models.assert_equal(got, want, f"{plan} rank {rank}")
