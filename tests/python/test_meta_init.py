"""Models built on the meta device get memory and values unit by unit, equal under every plan."""

import lins
import models
import pytest
import torch
from models import AXES, nested
from torch import nn


def on_meta(make=models.Stack):
    class Plain(make):
        """Without the values that tests give."""

        def __init__(self):
            fill, models.fill = models.fill, lambda model, *_: model
            try:
                super().__init__()
            finally:
                models.fill = fill

    with torch.device("meta"):
        return Plain()


def everywhere(plans, shape=(2, 2), **options):
    built = [[on_meta() for _ in plans] for _ in range(shape[0] * shape[1])]

    def check(mesh):
        out = []
        for plan, model in zip(plans, built[mesh.rank], strict=True):
            lins.lins_shard(model, mesh, plan, **options)
            out.append({n: t.clone() for n, t in model.state_dict().items()})
        return out

    return lins.testing.run(shape, AXES, check)


def test_values_depend_on_seed_and_names_alone():
    first = everywhere(["ddp"])[0][0]
    assert all(t.device.type == "cpu" and t.isfinite().all() for t in first.values())
    assert first["blocks.0.up.weight"].std() > 0.1
    assert not torch.equal(first["blocks.0.up.weight"], first["blocks.1.up.weight"])
    for shape in ((2, 2), (1, 4), (2, 3)):
        for results in everywhere(nested(shape), shape):
            for got in results:
                models.assert_equal(got, first)
    for units in ("linear", lambda m: isinstance(m, models.Block)):
        models.assert_equal(everywhere(["zero3"], units=units, init="check")[0][0], first)
    other = everywhere(["ddp"], seed=1)[0][0]
    assert not torch.equal(other["head.weight"], first["head.weight"])


def test_an_init_fn_gives_the_values_and_training_equals_that_of_a_model_with_memory():
    def ones_and_names(module):
        for p in module.parameters(recurse=False):
            p.fill_(0.01 * p.numel())

    real = models.Stack()
    for m in real.modules():
        with torch.no_grad():
            ones_and_names(m)
    want = models.train_alone(4, model=real, whole=True, settings=models.SIGN_DESCENT, steps=2)[1]
    built = [on_meta() for _ in range(4)]

    def check(mesh):
        options = {"init_fn": ones_and_names, "whole": True, "settings": models.SIGN_DESCENT}
        return models.train(mesh, "zero3", steps=2, model=built[mesh.rank], **options)[1]

    for got in lins.testing.run((2, 2), AXES, check):
        models.assert_close(got, want, tolerance=1e-6)


def test_one_unit_at_a_time_is_whole():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(16))

    alive = []

    def init(module):
        for p in module.parameters(recurse=False):
            p.normal_()
            alive.append(sum(not q.is_meta for q in model.parameters()))

    with torch.device("meta"):
        model = Deep()
    lins.testing.run((1, 1), AXES, lambda mesh: lins.lins_shard(model, mesh, "ddp", init_fn=init))
    assert alive == list(range(1, 17))


def test_what_has_no_way_to_get_values_is_refused_on_every_rank():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.empty(3))

    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)
            self.register_buffer("angles", torch.empty(3))

        def reset_parameters(self):
            pass

    def build(cls):
        with torch.device("meta"):
            return cls()

    bare = [build(Bare) for _ in range(4)]
    forgetful = [build(Forgetful) for _ in range(4)]

    def check(mesh):
        with pytest.raises(
            lins.LinsError, match=r"the model \(Bare\).*no reset_parameters.*init_fn"
        ):
            lins.lins_shard(bare[mesh.rank], mesh, "zero3")
        with pytest.raises(
            lins.LinsError, match=r"buffer angles .* no value from reset_parameters"
        ):
            lins.lins_shard(forgetful[mesh.rank], mesh, "zero3")

    lins.testing.run((2, 2), AXES, check)


def test_buffers_on_the_meta_device_get_values():
    with torch.device("meta"):
        built = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(4)]

    def check(mesh):
        model = lins.lins_shard(built[mesh.rank], mesh, "zero3")
        return model[1].running_mean.tolist(), model[1].running_var.tolist()

    assert lins.testing.run((2, 2), AXES, check) == [([0.0, 0.0], [1.0, 1.0])] * 4
