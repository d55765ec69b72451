"""state_dict and load_state_dict of wrapped models: names, values, masters."""

import lins
import models
import pytest
import torch
from models import AXES, nested
from torch import nn

PLANS = ["ddp", "zero1", "zero3", "hsdp", "P=2x1 G=2x1 OS=4"]


class Tied(models.Stack):
    """A head that is the embedding, buffers of both kinds."""

    def __init__(self, seed=0):
        super().__init__(seed=seed)
        self.other = nn.Linear(3, 5)
        self.other.weight = self.inp.weight
        self.register_buffer("count", torch.tensor([3]))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def run(fn, plans=PLANS):
    return lins.testing.run((2, 2), AXES, lambda mesh: {p: fn(mesh, p) for p in plans})


def assert_same(got, want):
    assert list(got) == list(want)
    for name, t in want.items():
        assert torch.equal(got[name], t), name


def test_it_looks_like_the_unwrapped_models_under_every_plan():
    want = Tied(seed=0).state_dict()

    def check(mesh, plan):
        model = lins.lins_shard(Tied(seed=mesh.rank), mesh, plan)
        with torch.no_grad():
            model.count.fill_(3)
        return dict(model.state_dict())

    for results in run(check, nested((2, 2))):
        for got in results.values():
            for name in ("other.bias",):
                got.pop(name)
            assert_same(got, {n: t for n, t in want.items() if n != "other.bias"})


def test_modules_inside_have_theirs():
    want = models.Stack().blocks[1].state_dict()

    def check(mesh, plan):
        return dict(lins.lins_shard(models.Stack(), mesh, plan).blocks[1].state_dict())

    for results in run(check):
        for got in results.values():
            assert_same(got, want)


def test_values_after_an_update_under_way_are_the_new_ones():
    _, want = models.train_alone(4, steps=1, whole=True, settings=models.SIGN_DESCENT)

    def check(mesh, plan):
        model = lins.lins_shard(models.Stack(whole=True), mesh, plan)
        opt = lins.AdamW(model, **models.SIGN_DESCENT)
        models.backward(model, 0, mesh.rank, whole=True)
        with lins.testing.delay(role="update", seconds=0.05):
            opt.step()
            return {n: t.clone() for n, t in model.state_dict().items()}

    for results in run(check):
        for plan, got in results.items():
            models.assert_equal(got, want, plan)


def test_options():
    def check(mesh, plan):
        model = lins.lins_shard(Tied(), mesh, plan)
        whole = lins.state_dict(model)
        parts = lins.state_dict(model, sharded=True)
        assert list(parts) == [n for n, _ in model.named_parameters(remove_duplicate=False)] + [
            "count"
        ]
        for name, part in parts.items():
            full = part.full_tensor() if isinstance(part, lins.DTensor) else part
            assert torch.equal(full, whole[name]), name
        only = lins.state_dict(model, rank0_only=True, cpu=True)
        assert list(only) == (list(whole) if mesh.rank == 0 else [])
        with lins.no_communication():
            lins.state_dict(model, sharded=True)

    run(check)


def test_loading_gives_every_plan_the_values_and_training_goes_on_from_them():
    source = models.Stack(seed=5)
    want = {n: t.clone() for n, t in source.state_dict().items()}

    def check(mesh, plan):
        model = lins.lins_shard(models.Stack(seed=0), mesh, plan)
        missing = model.load_state_dict(want)
        assert not missing.missing_keys and not missing.unexpected_keys
        for name, t in model.state_dict().items():
            assert torch.equal(t, want[name]), name
        opt = lins.AdamW(model, **models.ADAM)
        models.backward(model, 0, mesh.rank)
        opt.step()
        return models.parameters(model)

    def straight(mesh, plan):
        return models.train(mesh, plan, steps=1, model=models.Stack(seed=5))[1]

    for got, expected in zip(run(check), run(straight), strict=True):
        for plan in PLANS:
            models.assert_equal(got[plan], expected[plan], plan)


def test_masters_are_loaded_in_their_own_precision():
    want = models.Stack(seed=5).state_dict()

    def check(mesh, plan):
        model = lins.lins_shard(models.Stack(), mesh, plan, param_dtype=torch.bfloat16)
        model.load_state_dict(want)
        for name, s in lins.states(model).items():
            assert torch.equal(s.master.full_tensor(), want[name]), name
            assert torch.equal(s.param.full_tensor(), want[name].bfloat16()), name

    run(check)


def test_keys_that_do_not_fit_are_told_as_torch_tells_them():
    good = models.Stack().state_dict()
    bad = {**good, "head.weight": torch.zeros(3, 3), "stranger": torch.zeros(1)}
    del bad["inp.bias"]

    def check(mesh, plan):
        model = lins.lins_shard(models.Stack(), mesh, plan)
        with pytest.raises(RuntimeError) as caught:
            model.load_state_dict(bad)
        for part in ("size mismatch for head.weight", "stranger", "inp.bias"):
            assert part in str(caught.value)
        assert_same(dict(model.state_dict()), good)  # here the others were equal
        with pytest.raises(lins.LinsError, match="assign=True"):
            model.load_state_dict(good, assign=True)
        models.backward(model, 0, mesh.rank)

    run(check)
