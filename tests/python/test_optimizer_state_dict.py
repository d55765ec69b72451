"""state_dict and load_state_dict of sharded optimizers."""

import copy
import re

import lins
import models
import pytest
import torch
from models import ADAM, AXES
from optimizers import Flat

RULES = {
    "AdamW": ADAM,
    "Adam": {**ADAM, "amsgrad": True},
    "SGD": {"lr": 0.1, "momentum": 0.9},
}
SHARDED = {
    **RULES,
    "Lion": {"lr": 0.1},
    "AdamW8bit": {"lr": 0.1},
    "Adafactor": {"lr": 0.1},
    "Muon": {"lr": 0.1},
}


def advance(model, opt, rank, steps):
    for step in steps:
        for r in [rank] if rank is not None else range(4):
            model.loss(step, r).backward()
        if rank is None:
            for p in model.parameters():
                p.grad /= 4
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("rule", RULES)
def test_torchs_states_continue_here_and_ours_there(rule):
    settings = RULES[rule]
    reference = Flat()
    opt = getattr(torch.optim, rule)(reference.parameters(), **settings)
    advance(reference, opt, None, range(2))
    saved = copy.deepcopy((reference.state_dict(), opt.state_dict()))
    advance(reference, opt, None, range(2, 4))
    want = models.clone(reference.named_parameters())

    def check(mesh):
        out = []
        for plan in ["ddp", "zero1", "zero3"]:
            model = Flat()
            model.load_state_dict(saved[0])
            lins.lins_shard(model, mesh, plan)
            mine = getattr(lins, rule)(model, **{**settings, "lr": 7.0})
            mine.load_state_dict(saved[1])
            assert mine.param_groups[0]["lr"] == settings["lr"]
            advance(model, mine, mesh.rank, range(2, 3))
            half = (models.parameters(model), copy.deepcopy(mine.full_state_dict()))
            advance(model, mine, mesh.rank, range(3, 4))
            out.append((models.parameters(model), half))
        return out

    for results in lins.testing.run((2, 2), AXES, check):
        for got, (parameters, state) in results:
            models.assert_equal(got, want)
            # The last step, in torch again.
            model = Flat()
            model.load_state_dict(parameters)
            back = getattr(torch.optim, rule)(model.parameters(), **settings)
            del state["param_groups"][0]["param_names"]
            back.load_state_dict(state)
            advance(model, back, None, range(3, 4))
            models.assert_equal(models.clone(model.named_parameters()), want)


@pytest.mark.parametrize("rule", SHARDED)
def test_a_state_dict_continues_under_the_same_plan_and_a_full_one_under_another(rule):
    def check(mesh):
        make = getattr(lins, rule)
        model = lins.lins_shard(Flat(), mesh, "zero1")
        opt = make(model, **SHARDED[rule])
        advance(model, opt, mesh.rank, range(2))
        parameters = models.parameters(model)
        with lins.no_communication():
            state = copy.deepcopy(opt.state_dict())
        full = opt.full_state_dict()
        advance(model, opt, mesh.rank, range(2, 4))
        want = models.parameters(model)
        for plan, given in [("zero1", state), ("zero3", full), ("hsdp", full)]:
            other = Flat()
            other.load_state_dict(parameters)
            lins.lins_shard(other, mesh, plan)
            again = make(other, **SHARDED[rule])
            with lins.no_communication():
                again.load_state_dict(given)
            advance(other, again, mesh.rank, range(2, 4))
            models.assert_equal(models.parameters(other), want, plan)

    lins.testing.run((2, 2), AXES, check)


@pytest.mark.parametrize("rule", SHARDED)
def test_loading_its_own_state_dict_changes_nothing_and_missing_entries_start_anew(rule):
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        opt = getattr(lins, rule)(model, **SHARDED[rule])
        advance(model, opt, mesh.rank, range(2))
        before = opt.full_state_dict()["state"]
        opt.load_state_dict(opt.state_dict())
        after = opt.full_state_dict()["state"]
        for i, entry in before.items():
            assert any(v.any() for k, v in entry.items() if k != "step")
            for key, value in entry.items():
                assert torch.equal(after[i][key], value), (i, key)
        state = opt.state_dict()
        del state["state"][0]
        opt.load_state_dict(state)
        assert 0 not in opt.state_dict()["state"]
        _, updates, states = opt._core.records()[0]
        assert updates == 0
        assert not any(t.full_tensor().any() for t in states.values())

    lins.testing.run((1, 2), AXES, check)


def test_a_state_dict_is_that_of_torch_with_dtensors_in_it():
    reference = Flat()
    theirs = torch.optim.AdamW(reference.parameters(), **ADAM)
    advance(reference, theirs, None, range(1))
    want = theirs.state_dict()

    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero3")
        opt = lins.AdamW(model, **ADAM)
        assert opt.state_dict()["state"] == {}
        advance(model, opt, mesh.rank, range(1))
        got = opt.state_dict()
        assert got["state"].keys() == want["state"].keys()
        names = got["param_groups"][0].pop("param_names")
        assert names == [n for n, _ in reference.named_parameters()]
        assert got["param_groups"][0]["params"] == want["param_groups"][0]["params"]
        for i, entry in want["state"].items():
            assert got["state"][i].keys() == entry.keys()
            assert torch.equal(got["state"][i]["step"], entry["step"])
            for key in ("exp_avg", "exp_avg_sq"):
                assert isinstance(got["state"][i][key], lins.DTensor)
                assert torch.equal(got["state"][i][key].full_tensor(), entry[key])

    lins.testing.run((2, 2), AXES, check)


def change(state_dict, **changes):
    out = copy.deepcopy(state_dict)
    for path, value in changes.items():
        if path == "exp_avg":
            out["state"][0]["exp_avg"] = value
        elif path == "without":
            del out["state"][0][value]
        elif path == "extra":
            out["state"][0][value] = torch.zeros(3, 5)
        elif path == "names":
            out["param_groups"][0]["param_names"][0] = value
        elif path == "fewer":
            out["param_groups"][0]["params"].pop()
        elif path == "group":
            out["param_groups"].append(value)
        elif path == "unknown":
            out["state"][value] = {}
        elif path == "drop":
            del out[value]
        else:
            out["param_groups"][0][path] = value
    return out


BAD = [
    ({"exp_avg": torch.zeros(5, 3)}, r"first\.weight' exp_avg: .*\(5, 3\).*\(3, 5\)"),
    ({"exp_avg": torch.zeros(8)}, r"\(8,\).*\(3, 5\)"),
    ({"exp_avg": 3.0}, "float is no tensor"),
    ({"without": "exp_avg_sq"}, r"lacks \['exp_avg_sq'\]"),
    ({"extra": "momentum_buffer"}, r"has \['momentum_buffer'\], legal are .*exp_avg"),
    ({"names": "gone"}, r"has \['gone'\], the optimizer \['first.weight'\]"),
    ({"fewer": True}, "has 5 parameters, the optimizer's 6"),
    ({"group": {"params": []}}, "2 param_groups, the optimizer 1"),
    ({"unknown": 17}, r"in no group: \[17\]"),
    ({"drop": "state"}, "'state' and 'param_groups'"),
    ({"lr": -1.0}, r"lr=-1\.0"),
]


@pytest.mark.parametrize("changes, message", BAD, ids=[str(next(iter(c))) + m[:9] for c, m in BAD])
def test_what_does_not_fit_is_an_error_and_nothing_is_changed(changes, message):
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        opt = lins.AdamW(model, **ADAM)
        advance(model, opt, mesh.rank, range(1))
        before = opt.full_state_dict()
        # What is wrong comes with other values in all that is right.
        given = copy.deepcopy(before)
        for entry in given["state"].values():
            entry["exp_avg_sq"] += 1
        with pytest.raises(lins.LinsError, match=message):
            opt.load_state_dict(change(given, **changes))
        after = opt.full_state_dict()
        assert after["param_groups"] == before["param_groups"]
        for i, entry in before["state"].items():
            assert all(torch.equal(after["state"][i][k], v) for k, v in entry.items())

    lins.testing.run((1, 2), AXES, check)


def test_states_of_another_layout_are_refused_with_both_layouts():
    def check(mesh):
        def state(plan):
            model = lins.lins_shard(Flat(), mesh, plan)
            opt = lins.AdamW(model, **ADAM)
            advance(model, opt, mesh.rank, range(1))
            return opt

        theirs, mine = state("ddp").state_dict(), state("zero3")
        layouts = [o["state"][0]["exp_avg"].layout for o in (theirs, mine.state_dict())]
        both = re.escape(f"layout {layouts[0]}, here {layouts[1]}")
        with pytest.raises(lins.LinsError, match=both):
            mine.load_state_dict(theirs)

    lins.testing.run((2, 2), AXES, check)


def test_hooks_are_called_as_torch_does():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        opt = lins.AdamW(model, **ADAM)
        calls = []
        opt.register_step_pre_hook(lambda o, args, kwargs: calls.append("before step"))
        opt.register_step_post_hook(lambda o, args, kwargs: calls.append("after step"))
        opt.register_state_dict_pre_hook(lambda o: calls.append("before state"))
        opt.register_state_dict_post_hook(lambda o, s: {**s, "extra": 1})
        opt.register_load_state_dict_pre_hook(
            lambda o, s: {k: v for k, v in s.items() if k != "extra"}
        )
        opt.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))
        model.loss(0, mesh.rank).backward()
        opt.step()
        state = opt.state_dict()
        assert state["extra"] == 1
        opt.load_state_dict(state)
        return calls

    want = ["before step", "after step", "before state", "loaded"]
    assert lins.testing.run((1, 2), AXES, check) == [want] * 2
