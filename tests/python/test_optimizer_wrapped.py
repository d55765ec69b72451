"""lins.wrap_optimizer: torch's elementwise optimizers over shards."""

import lins
import models
import pytest
import torch
from models import AXES, Stack
from optimizers import PLANS, Flat, alone, compare, sharded

RULES = {
    "NAdam": {"lr": 0.1, "weight_decay": 0.1},
    "RAdam": {"lr": 0.1},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {},
    "Adamax": {"lr": 0.1},
    "RMSprop": {"lr": 0.1, "momentum": 0.5, "centered": True},
    "Rprop": {},
    "ASGD": {"lr": 0.1},
    "AdamW": {"lr": 0.1, "foreach": True},
}


@pytest.mark.parametrize("rule", RULES)
def test_equal_to_the_optimizer_on_whole_parameters(rule):
    cls, settings = getattr(torch.optim, rule), RULES[rule]
    want = alone(lambda m: cls(m.parameters(), **settings), steps=4)

    def make(model):
        return lins.wrap_optimizer(cls, model, **settings)

    def check(mesh, plan):
        return sharded(mesh, plan, steps=4, make=make)

    results = lins.testing.run((2, 2), AXES, lambda mesh: [check(mesh, p) for p in PLANS])
    for by_plan in results:
        for plan, got in zip(PLANS, by_plan, strict=True):
            models.assert_close(got, want, plan)
            models.assert_close(got, by_plan[0], plan, tolerance=2.0**-22)


def test_groups_schedulers_and_states_reach_the_optimizer_inside():
    def torch_groups(m):
        rest = [m.first.weight, *m.blocks.parameters()]
        return [{"params": [m.first.bias], "lr": 0.3}, {"params": rest}]

    scheduler = torch.optim.lr_scheduler.ExponentialLR
    schedules = {}

    def scheduled(opt):
        schedules[id(opt)] = scheduler(opt, 0.5)
        return opt

    def after(opt):
        schedules[id(opt)].step()

    want = alone(lambda m: scheduled(torch.optim.NAdam(torch_groups(m), lr=0.1)), after=after)

    def make(model):
        groups = [{"params": ["first.bias"], "lr": 0.3}]
        opt = lins.wrap_optimizer(torch.optim.NAdam, model, lr=0.1, param_groups=groups)
        assert isinstance(opt, torch.optim.Optimizer)
        return scheduled(opt)

    compare(lambda mesh, plan: sharded(mesh, plan, make=make, after=after), want, ["ddp", "zero1"])


def test_state_dicts_load_in_the_same_layout_or_whole():
    def check(mesh):
        def made(plan):
            model = lins.lins_shard(Flat(), mesh, plan)
            return model, lins.wrap_optimizer(torch.optim.NAdam, model, lr=0.1)

        def advance(model, opt, steps):
            for step in steps:
                model.loss(step, mesh.rank).backward()
                opt.step()
                opt.zero_grad()

        model, opt = made("zero1")
        advance(model, opt, range(2))
        parameters, state, full = models.parameters(model), opt.state_dict(), opt.full_state_dict()
        assert tuple(full["state"][0]["exp_avg"].shape) == (3, 5)
        for plan, given in [("zero1", state), ("hsdp", full)]:
            other = Flat()
            other.load_state_dict(parameters)
            lins.lins_shard(other, mesh, plan)
            again = lins.wrap_optimizer(torch.optim.NAdam, other, lr=0.1)
            again.load_state_dict(given)
            advance(other, again, range(2, 3))
            got = models.parameters(other)
            if plan == "zero1":
                first = got
            models.assert_equal(got, first, plan)
        with pytest.raises(lins.LinsError, match="layout"):
            again.load_state_dict(state)

    lins.testing.run((2, 2), AXES, check)


def test_masters_are_updated_and_bf16_parameters_follow():
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero1", param_dtype=torch.bfloat16)
        opt = lins.wrap_optimizer(torch.optim.Adagrad, model, lr=0.1)
        models.backward(model, 0, mesh.rank)
        lins.clip_grad_norm_(model, 0.01)
        opt.step()
        for s in lins.states(model).values():
            assert s.master.dtype == torch.float32
            assert torch.equal(s.param.full_tensor(), s.master.full_tensor().bfloat16())

    lins.testing.run((1, 2), AXES, check)


def test_overflow_skips_everywhere():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero2")
        opt = lins.wrap_optimizer(torch.optim.Adagrad, model, lr=0.1)
        before = models.parameters(model)
        loss = model.loss(0, mesh.rank)
        (loss * float("nan") if mesh.rank == 1 else loss).backward()
        opt.step()
        models.assert_equal(models.parameters(model), before)
        return opt.skipped_steps

    assert lins.testing.run((2, 2), AXES, check) == [1] * 4


@pytest.mark.parametrize("rule", ["LBFGS", "Adafactor", "Muon", "SparseAdam"])
def test_rules_that_need_whole_parameters_are_refused(rule):
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        with pytest.raises(lins.LinsError, match=f"{rule} looks at whole parameters"):
            lins.wrap_optimizer(getattr(torch.optim, rule), model)
        with pytest.raises(lins.LinsError, match=r"Adagrad: .*-1\.0"):
            lins.wrap_optimizer(torch.optim.Adagrad, model, lr=-1.0)
        with pytest.raises(lins.LinsError, match="class"):
            lins.wrap_optimizer(torch.optim, model)

    lins.testing.run((1, 2), AXES, check)
