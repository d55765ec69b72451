"""What optimizers refuse: every rank gets the values and what is legal, nothing is changed."""

import lins
import models
import pytest
import torch
from models import ADAM, AXES
from optimizers import Flat
from torch import nn

BAD_OPTIONS = [
    ("AdamW", {"lr": -1e-3}, r"lr=-0\.001: legal is lr >= 0"),
    ("AdamW", {"lr": float("nan")}, "lr=nan"),
    ("AdamW", {"lr": "much"}, "lr='much' is no number"),
    ("AdamW", {"betas": (0.9, 1.0)}, r"beta2=1\.0: legal is beta2 in \[0, 1\)"),
    ("Adam", {"betas": (-0.1, 0.9)}, r"beta1=-0\.1"),
    ("Adam", {"betas": 0.9}, "betas=0.9 must be two numbers"),
    ("AdamW", {"eps": -1.0}, "eps=-1"),
    ("AdamW", {"weight_decay": -1.0}, "weight_decay=-1"),
    ("AdamW", {"rounding": "down"}, "'nearest' and 'stochastic'"),
    ("AdamW8bit", {"param_groups": [{"params": ["first.bias"], "amsgrad": True}]}, "amsgrad=True"),
    ("SGD", {"momentum": -0.5}, "momentum=-0.5"),
    ("SGD", {"nesterov": True}, r"nesterov with momentum=0\.0"),
    ("Lion", {"betas": (0.9, 2.0)}, "beta2=2"),
    ("Adafactor", {"d": 0.5}, "d=0.5"),
    ("Adafactor", {"eps": (-1.0, 1e-3)}, "eps1=-1"),
    ("Muon", {"ns_steps": 100}, "ns_steps=100"),
    ("Muon", {"ns_coefficients": (1.0, 2.0)}, "three numbers"),
    ("Muon", {"adjust_lr_fn": "mine"}, "'mine'.*'match_rms_adamw'"),
    ("AdamW", {"param_groups": [{"params": ["nowhere"]}]}, "no parameter 'nowhere'.*first.weight"),
    ("AdamW", {"param_groups": [{"params": [nn.Parameter(torch.zeros(3))]}]}, r"\(3,\).*not the"),
    ("AdamW", {"param_groups": [{"params": ["first.bias"]}] * 2}, "two param_groups"),
    ("AdamW", {"param_groups": [{"lr": 1.0}]}, "dicts with 'params'"),
]


@pytest.mark.parametrize("rule, options, message", BAD_OPTIONS, ids=lambda x: str(x)[:30])
def test_options_that_are_not_legal(rule, options, message):
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        with pytest.raises(lins.LinsError, match=message):
            getattr(lins, rule)(model, **options)

    lins.testing.run((1, 2), AXES, check)


LATE = [
    ("AdamW", ADAM, {"lr": -1.0}, "lr=-1"),
    ("AdamW", ADAM, {"amsgrad": True}, "amsgrad=0"),
    ("SGD", {"lr": 0.1}, {"momentum": 0.9}, "without momentum"),
    ("SGD", {"lr": 0.1, "momentum": 0.9}, {"momentum": 0.0}, "with momentum"),
    ("Muon", {"lr": 0.1}, {"muon": False}, "muon=1"),
]


@pytest.mark.parametrize("rule, options, late, message", LATE, ids=lambda x: str(x)[:30])
def test_options_changed_to_what_is_not_legal_change_nothing(rule, options, late, message):
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero2")
        opt = getattr(lins, rule)(model, **options)
        model.loss(0, mesh.rank).backward()
        before = models.parameters(model)
        opt.param_groups[0].update(late)
        with pytest.raises(lins.LinsError, match=message):
            opt.step()
        models.assert_equal(models.parameters(model), before)
        assert opt.state_dict()["state"] == {}
        opt.param_groups[0].update({k: v for k, v in opt.defaults.items() if k in late})
        opt.step()
        assert len(opt.state_dict()["state"]) == 6

    lins.testing.run((1, 2), AXES, check)


def test_ranks_that_disagree_about_options():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        with pytest.raises(lins.LinsError, match=r"ranks disagree about the optimizer.*0\.1.*0\.2"):
            lins.AdamW(model, lr=0.1 if mesh.rank == 0 else 0.2)

    lins.testing.run((1, 2), AXES, check)


def test_a_step_with_gradients_missing_mid_accumulation_names_what_is_missing():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero2")
        opt = lins.AdamW(model)
        with lins.micro_batch(model, index=0, count=3):
            model.loss(0, mesh.rank).backward()
        with pytest.raises(lins.LinsError, match=r"micro-batch 0 of 3.*index=1"):
            opt.step()
        with pytest.raises(lins.LinsError, match=r"micro-batch 0 of 3"):
            opt.grad_norms()

    lins.testing.run((1, 2), AXES, check)


def test_groups_are_fixed_once_the_optimizer_exists():
    def check(mesh):
        opt = lins.AdamW(lins.lins_shard(Flat(), mesh, "zero1"))
        with pytest.raises(lins.LinsError, match="param_groups are fixed"):
            opt.add_param_group({"params": []})

    lins.testing.run((1, 2), AXES, check)


def test_a_second_optimizer_takes_the_models_states_over():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        first = lins.AdamW(model, lr=0.1)
        second = lins.SGD(model, lr=0.1, momentum=0.9)
        s = lins.states(model)["first.weight"]
        assert s.exp_avg is None and s.momentum_buffer is not None
        del first
        model.loss(0, mesh.rank).backward()
        second.step()
        return bool(lins.states(model)["first.weight"].momentum_buffer.full_tensor().any())

    assert lins.testing.run((1, 2), AXES, check) == [True] * 2


def test_a_group_may_be_a_module():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        opt = lins.AdamW(model, param_groups=[{"params": model.blocks, "lr": 0.5}])
        return [len(g["params"]) for g in opt.param_groups]

    assert lins.testing.run((1, 2), AXES, check) == [[4, 2]] * 2
