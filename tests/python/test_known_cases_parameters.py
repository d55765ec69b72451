"""Parameters that broke other systems: unused, tied, empty, scalar, strided, frozen.

Numbers in comments are those of the list of known cases.
"""

import lins
import models
import pytest
import torch
from agreement import SHAPES, agree, everywhere, mean_gradients
from models import SIGN_DESCENT, shard
from torch import nn

# Case 24: used by some ranks only, first used in the last micro-batch, never used.


class Choosy(nn.Module):
    """Which layers are used is up to the caller."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.pick = nn.ModuleList(Pick() for _ in range(2))
        self.never = nn.Linear(3, 3)
        models.fill(self, whole=True, seed=3)

    def forward(self, x, which):
        x = self.first(x)
        for pick in self.pick:
            x = pick(x, which)
        return x


class Pick(nn.Module):
    def __init__(self):
        super().__init__()
        self.options = nn.ParameterDict({k: nn.Parameter(torch.zeros(3, 3)) for k in "abc"})

    def forward(self, x, which):
        return x @ self.options[which]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parameters_used_by_some_ranks_only_or_by_none(shape):
    def loss(model, rank):
        x, _ = models.batch(0, 0, rank, True)
        return model(x, "ab"[rank % 2]).sum()

    def check(mesh, plan):
        model = shard(Choosy(), mesh, plan)
        loss(model, mesh.rank).backward()
        early = models.gradients(model)
        lins.clip_grad_norm_(model, 1e9)
        return early, models.gradients(model)

    want = mean_gradients(Choosy, loss, shape[0] * shape[1])
    assert want["pick.0.options.c"] is None
    zeros = {n: torch.zeros(3, 3) if "pick" in n else None for n in want}
    zeros["never.weight"], zeros["never.bias"] = torch.zeros(3, 3), torch.zeros(3)
    for results in everywhere(check, shape):
        for plan, (early, late) in results.items():
            models.assert_equal(late, want, plan)
            filled = {n: zeros[n] if g is None else g for n, g in want.items()}
            models.assert_equal(early, filled, plan)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_parameter_used_first_in_the_last_micro_batch(shape, micro_batches):
    ranks = shape[0] * shape[1]

    def losses(model, rank):
        for m in range(micro_batches):
            x, _ = models.batch(0, m, rank, True)
            yield model(x, "b" if m + 1 == micro_batches and rank == 2 else "a").sum()

    def alone():
        model = Choosy()
        for rank in range(ranks):
            for loss in losses(model, rank):
                loss.backward()
        return {
            n: None if p.grad is None else p.grad / (ranks * micro_batches)
            for n, p in model.named_parameters()
        }

    def check(mesh, plan):
        model = shard(Choosy(), mesh, plan)
        opt = lins.AdamW(model, **SIGN_DESCENT)
        for m, loss in enumerate(losses(model, mesh.rank)):
            with lins.micro_batch(model, index=m, count=micro_batches):
                loss.backward()
        opt.step()
        return models.gradients(model), models.parameters(model)

    want = alone()
    before = models.clone(Choosy().named_parameters())
    moved = {n: p if want[n] is None else p - want[n].sign() for n, p in before.items()}
    for results in everywhere(check, shape):
        for plan, (grads, params) in results.items():
            models.assert_equal(grads, want, plan)
            models.assert_equal(params, moved, plan)


# Case 25: an embedding of 5 rows that is the head as well.


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([models.Block(4, True)])
        self.head = nn.Linear(4, 5, bias=False)
        models.fill(self, whole=True, seed=1)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.blocks[0](self.embed(ids)))


@pytest.mark.parametrize("units", ["block", "linear"])
@pytest.mark.parametrize("shape", [(1, 2), (2, 1), *SHAPES], ids=str)
def test_every_row_of_a_tied_embedding_is_updated_once(shape, units):
    ranks = shape[0] * shape[1]

    def step(model, opt, rank):
        generator = torch.Generator().manual_seed(rank)
        ids = torch.randint(0, 5, (3,), generator=generator)
        y = torch.randint(-2, 3, (3, 5), generator=generator)
        return (model(ids) * y).sum()

    def alone():
        model = Tied()
        opt = torch.optim.AdamW(model.parameters(), **SIGN_DESCENT)
        for rank in range(ranks):
            step(model, opt, rank).backward()
        for p in model.parameters():
            p.grad /= ranks
        opt.step()
        return models.clone(model.named_parameters())

    def check(mesh, plan):
        model = shard(Tied(), mesh, plan, units=units)
        opt = lins.AdamW(model, **SIGN_DESCENT)
        step(model, opt, mesh.rank).backward()
        opt.step()
        assert model.head.weight is model.embed.weight
        return models.parameters(model)

    agree(check, alone, shape)


# Case 27: a scalar, a strided one, a frozen layer of another dtype.


class Odd(nn.Module):
    """A scalar, an empty one, one of stride (1, 4), and a frozen layer of another dtype."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.strided = nn.Parameter(torch.arange(12.0).view(3, 4).t())
        self.blocks = nn.ModuleList([nn.Linear(3, 3)])
        self.frozen = nn.Linear(3, 3).to(torch.bfloat16)
        self.frozen.requires_grad_(False)
        with torch.no_grad():
            self.blocks[0].weight.copy_(torch.eye(3))
            self.blocks[0].bias.fill_(1)
            self.frozen.weight.copy_(torch.tensor([[1.0, 0, 2], [0, 1, 0], [0, 0, 1]]))
            self.frozen.bias.fill_(0)

    def forward(self, x):
        x = self.frozen(x.bfloat16()).float()
        return self.scale * (self.blocks[0](x) @ self.strided.t()).sum() + self.nothing.sum()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scalar_empty_strided_and_frozen_parameters(shape):
    ranks = shape[0] * shape[1]
    assert Odd().strided.stride() == (1, 4)

    def loss(model, rank):
        return model(models.batch(0, 0, rank, True)[0])

    def step(model, opt):
        opt.step()
        return model.frozen.weight.dtype

    def alone():
        model = Odd()
        opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **SIGN_DESCENT)
        for rank in range(ranks):
            loss(model, rank).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= ranks
        opt.step()
        return models.clone(model.named_parameters())

    def check(mesh, plan):
        model = shard(Odd(), mesh, plan)
        opt = lins.AdamW(model, **SIGN_DESCENT)
        loss(model, mesh.rank).backward()
        assert lins.states(model)["frozen.weight"].grad is None
        opt.step()
        return models.parameters(model)

    agree(check, alone, shape)


# Case 26: fewer elements than ranks.


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parameters_smaller_than_the_group_leave_empty_shards(shape):
    ranks = shape[0] * shape[1]

    # (2, 8) over 4 ranks, and three elements over four ranks: rank 3 holds padding only.
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 2, bias=False), nn.Linear(2, 1)])
            models.fill(self, whole=True, seed=5)

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))

    def loss(model, rank):
        return model(models.batch(0, 0, rank, True, width=8)[0]).sum()

    def alone():
        model = Small()
        opt = torch.optim.AdamW(model.parameters(), **SIGN_DESCENT)
        for rank in range(ranks):
            loss(model, rank).backward()
        for p in model.parameters():
            p.grad /= ranks
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        opt.step()
        return {**models.clone(model.named_parameters()), "norm": norm}

    def check(mesh, plan):
        model = shard(Small(), mesh, plan)
        opt = lins.AdamW(model, **SIGN_DESCENT)
        loss(model, mesh.rank).backward()
        norm = lins.clip_grad_norm_(model, 1e9)
        opt.step()
        if plan == "zero3" and shape == (2, 2):
            bias = lins.states(model)["blocks.1.bias"]
            assert (bias.param.to_local().numel() > 0) == (mesh.rank == 1)  # slots go gpu first
            assert lins.memory(model)["padding"] > 0
        return {**models.parameters(model), "norm": norm}

    agree(check, alone, shape)
