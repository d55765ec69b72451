"""lins.AdamW and clipping: torch's results, whatever the layout."""

import math

import lins
import models
import pytest
import torch
from models import ADAM, AXES, Stack, nested
from optimizers import PLANS, Flat, Term, alone, compare, sharded
from torch import nn


def whole_step(model, rank, step=0):
    models.loss_of(model, *models.batch(step, 0, rank, True), True).backward()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        ADAM,
        {"lr": 0.1, "betas": (0.5, 0.5)},
        {"lr": 0.1, "betas": (0.2, 0.1), "eps": 1e-3},
        {"lr": 0.0, "weight_decay": 0.5},
        {"lr": 1e-2, "maximize": True},
    ],
    ids=str,
)
def test_three_steps_equal_torch_bit_for_bit(settings):
    want = alone(lambda m: torch.optim.AdamW(m.parameters(), **settings))
    compare(lambda mesh, plan: sharded(mesh, plan, **settings), want)


def test_step_without_gradients_since_zero_grad_changes_nothing():
    want = alone(lambda m: torch.optim.AdamW(m.parameters(), **ADAM), steps=2)

    def check(mesh, plan):
        def idle(opt):
            opt.zero_grad()
            with lins.trace() as t:
                opt.step()
            assert t.records == []

        return sharded(mesh, plan, steps=2, after=idle, **ADAM)

    compare(check, want)


def test_groups_by_names_and_parameters_and_the_rest():
    def torch_groups(m):
        rest = [m.first.weight, *m.blocks[0].parameters(), m.blocks[1].bias]
        return [
            {"params": [m.first.bias], "lr": 0.5, "weight_decay": 0.0},
            {"params": [m.blocks[1].weight], "betas": (0.5, 0.6), "eps": 1e-4},
            {"params": rest},
        ]

    want = alone(lambda m: torch.optim.AdamW(torch_groups(m), **ADAM))

    def make(model):
        groups = [
            {"params": ["first.bias"], "lr": 0.5, "weight_decay": 0.0},
            {"params": [model.blocks[1].weight], "betas": (0.5, 0.6), "eps": 1e-4},
        ]
        opt = lins.AdamW(model, **ADAM, param_groups=groups)
        assert isinstance(opt, torch.optim.Optimizer)
        assert [len(g["params"]) for g in opt.param_groups] == [1, 1, 4]
        assert [g["lr"] for g in opt.param_groups] == [0.5, ADAM["lr"], ADAM["lr"]]
        return opt

    compare(lambda mesh, plan: sharded(mesh, plan, make=make), want)


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers_of_torch(tensor_lr):
    def settings():
        return {**ADAM, "lr": torch.tensor(0.5)} if tensor_lr else {**ADAM, "lr": 0.5}

    schedule = {}

    def scheduled(cls, model, **options):
        opt = cls(model, **settings(), **options)
        schedule[id(opt)] = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.5**step)
        return opt

    def after(opt):
        schedule[id(opt)].step()

    # foreach and fused paths of torch round a tensor lr in an order of their own.
    want = alone(lambda m: scheduled(torch.optim.AdamW, m.parameters(), foreach=False), after=after)

    def check(mesh, plan):
        return sharded(mesh, plan, make=lambda m: scheduled(lins.AdamW, m), after=after)

    compare(check, want, plans=["ddp", "zero1", "zero3"])


@pytest.mark.parametrize("name", ["CosineAnnealingLR", "OneCycleLR", "StepLR"])
def test_more_schedulers(name):
    def schedule(opt):
        cls = getattr(torch.optim.lr_scheduler, name)
        options = {"CosineAnnealingLR": {"T_max": 4}, "StepLR": {"step_size": 2}}
        return cls(opt, **options.get(name, {"max_lr": 0.1, "total_steps": 8}))

    def rates(opt):
        s = schedule(opt)
        out = []
        for _ in range(4):
            opt.step()
            s.step()
            out.append((opt.param_groups[0]["lr"], opt.param_groups[0]["betas"]))
        return out

    want = rates(torch.optim.AdamW(Flat().parameters(), lr=0.5))
    got = lins.testing.run(
        (2, 1), AXES, lambda mesh: rates(lins.AdamW(lins.lins_shard(Flat(), mesh, "zero1"), lr=0.5))
    )
    assert got == [want] * 2


def test_a_closure_is_called_with_gradients_on():
    want = alone(lambda m: torch.optim.AdamW(m.parameters(), **ADAM), steps=1)

    def check(mesh, plan):
        model = lins.lins_shard(Flat(), mesh, plan)
        opt = lins.AdamW(model, **ADAM)

        def closure():
            loss = model.loss(0, mesh.rank)
            loss.backward()
            return loss

        with torch.no_grad():
            loss = opt.step(closure)
        assert loss.item() == Flat().loss(0, mesh.rank).item()
        return models.parameters(model)

    compare(check, want, plans=["zero1", "zero3"])


# --- parameters without gradient


class Optional(Flat):
    """`late` joins in step 2; `unused` never."""

    def __init__(self):
        super().__init__()
        self.late = Term(2, 3)
        self.unused = Term(2, 2)
        models.fill(self.late, False, 7)
        models.fill(self.unused, False, 8)
        self.step, self.user = 0, None

    def forward(self, xs):
        out = super().forward(xs)
        if self.step >= 2 and self.user in (None, 1):
            out = out + self.late(xs[0][:2, :3])
        return out


def test_parameters_without_gradient_are_left_alone_and_count_from_their_first_use():
    def run(model, opt, backward):
        for step in range(4):
            model.step = step
            backward(model, step)
            opt.step()
            opt.zero_grad()

    model = Optional()
    opt = torch.optim.AdamW(model.parameters(), **ADAM)

    def backward_alone(model, step):
        for rank in range(4):
            model.user = rank
            model.loss(step, rank).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= 4

    run(model, opt, backward_alone)
    want = models.clone(model.named_parameters())
    start = models.clone(Optional().named_parameters())
    assert torch.equal(want["unused.weight"], start["unused.weight"])
    assert not torch.equal(want["late.weight"], start["late.weight"])

    def check(mesh, plan):
        # Only rank 1 uses `late`, from step 2 on.
        model = lins.lins_shard(Optional(), mesh, plan)
        model.user = mesh.rank
        opt = lins.AdamW(model, **ADAM)
        run(model, opt, lambda m, step: m.loss(step, mesh.rank).backward())
        return models.parameters(model)

    compare(check, want)


# --- clipping


@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (2, 3)], ids=str)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_clipping_equals_torch_for_all_nested_plans(norm_type, shape):
    ranks = shape[0] * shape[1]
    reference = Stack(whole=True)
    for rank in range(ranks):
        whole_step(reference, rank)
    for p in reference.parameters():
        p.grad /= ranks
    want_norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.5, norm_type)
    want = {n: p.grad for n, p in reference.named_parameters()}
    plans = nested(shape)

    def check(mesh):
        out = []
        for plan in plans:
            model = lins.lins_shard(Stack(whole=True), mesh, plan)
            whole_step(model, mesh.rank)
            norm = lins.clip_grad_norm_(model, 0.5, norm_type)
            out.append((norm, models.gradients(model)))
        return out

    for results in lins.testing.run(shape, AXES, check):
        for plan, (norm, grads) in zip(plans, results, strict=True):
            assert type(norm) is torch.Tensor
            assert (norm.shape, norm.dtype) == ((), torch.float32)
            torch.testing.assert_close(norm, want_norm, rtol=1e-6, atol=0)
            models.assert_close(grads, want, plan)


def test_clipping_then_stepping_equals_torch():
    def train(model, opt, backward, clip):
        for step in range(2):
            backward(model, step)
            clip(model)
            opt.step()
            opt.zero_grad()

    reference = Stack()
    opt = torch.optim.AdamW(reference.parameters(), **ADAM)

    def backward_alone(model, step):
        for rank in range(4):
            models.loss_of(model, *models.batch(step, 0, rank)).backward()
        for p in model.parameters():
            p.grad /= 4

    train(reference, opt, backward_alone, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1))
    want = models.clone(reference.named_parameters())

    def check(mesh):
        out = {}
        for plan in PLANS:
            model = lins.lins_shard(Stack(), mesh, plan)
            train(
                model,
                lins.AdamW(model, **ADAM),
                lambda m, step: models.backward(m, step, mesh.rank),
                lambda m: lins.clip_grad_norm_(m, 0.1),
            )
            out[plan] = models.parameters(model)
        return out

    for results in lins.testing.run((2, 2), AXES, check):
        for plan, got in results.items():
            models.assert_close(got, want, plan)


def test_a_norm_without_gradients_is_zero_and_of_inf_is_not_finite():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero3")
        empty = lins.clip_grad_norm_(model, 1.0).item()
        (model.loss(0, mesh.rank) * (math.inf if mesh.rank == 3 else 1)).backward()
        return empty, math.isfinite(lins.clip_grad_norm_(model, 1.0).item())

    assert lins.testing.run((2, 2), AXES, check) == [(0.0, False)] * 4


def test_clipping_and_stepping_share_one_reduction():
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero3")
        opt = lins.AdamW(model)
        models.backward(model, 0, mesh.rank)
        with lins.trace() as t:
            lins.clip_grad_norm_(model, 1.0)
            opt.step()
        return [(r.op, r.role) for r in t.records]

    # Under zero3 OS = P: the update moves nothing.
    assert lins.testing.run((2, 2), AXES, check) == [[("all_reduce", "other")]] * 4
