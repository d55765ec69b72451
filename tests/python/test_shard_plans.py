"""Every plan trains like a single process: bit for bit on whole numbers, closely on others."""

import lins
import models
import pytest
import torch
from agreement import PLANS, everywhere
from models import ADAM, AXES, MESHES, SIGN_DESCENT, nested, shard


@pytest.fixture(scope="module")
def alone():
    """Results of one process, worked out once."""
    known = {}

    def get(**options):
        key = tuple(sorted((k, str(v)) for k, v in options.items()))
        if key not in known:
            known[key] = models.train_alone(4, **options)
        return known[key]

    return get


def test_the_reference_is_exact_on_whole_numbers(alone):
    for m in (1, 2, 4):
        options = {"whole": True, "micro_batches": m, "settings": SIGN_DESCENT}
        grads, params = alone(**options)
        grads64, params64 = models.train_alone(4, **options, dtype=torch.float64)
        assert any(g.abs().max() > 10 for g in grads[-1].values())
        for got, want in zip([*grads, params], [*grads64, params64], strict=True):
            models.assert_equal({n: t.double() for n, t in got.items()}, want)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_whole_numbers_train_bit_for_bit_under_every_nested_plan(shape, micro_batches, alone):
    options = {"whole": True, "micro_batches": micro_batches, "settings": SIGN_DESCENT}
    want_grads, want_params = alone(**options)
    plans = nested(shape)
    assert len(plans) == 10

    def check(mesh):
        return [models.train(mesh, plan, **options) for plan in plans]

    for rank, results in enumerate(lins.testing.run(shape, AXES, check)):
        for plan, (grads, params) in zip(plans, results, strict=True):
            for step in range(3):
                models.assert_equal(
                    grads[step], want_grads[step], f"{plan} rank {rank} step {step}"
                )
            models.assert_equal(params, want_params, f"{plan} rank {rank}")


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_floats_train_closely_and_replicas_alike_under_every_nested_plan(
    shape, micro_batches, alone
):
    _, want = alone(micro_batches=micro_batches)
    plans = nested(shape)

    def check(mesh):
        return [models.train(mesh, plan, micro_batches=micro_batches) for plan in plans]

    results = lins.testing.run(shape, AXES, check)
    for i, plan in enumerate(plans):
        models.assert_close(results[0][i][1], want, plan)
        for rank in (1, 2, 3):
            models.assert_equal(results[rank][i][1], results[0][i][1], f"{plan} rank {rank}")


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_updates_equal_those_of_torch_on_the_same_gradients_bit_for_bit(shape):
    plans = nested(shape)

    def check(mesh):
        out = []
        for plan in plans:
            grads, params = models.train(mesh, plan, micro_batches=3)
            replica = models.Stack()
            opt = torch.optim.AdamW(replica.parameters(), **ADAM)
            for step in grads:
                for name, p in replica.named_parameters():
                    p.grad = step[name].clone()
                opt.step()
            out.append((params, models.clone(replica.named_parameters())))
        return out

    for results in lins.testing.run(shape, AXES, check):
        for plan, (got, want) in zip(plans, results, strict=True):
            models.assert_equal(got, want, plan)


SOME = ["ddp", "zero1", "zero2", "zero3", "hsdp", "P=1 G=2x1 OS=4"]


@pytest.mark.parametrize("units", ["block", "linear", "function", "every module"])
def test_units_do_not_change_values(units, alone):
    rule = {
        "function": lambda m: isinstance(m, models.Block),
        "every module": lambda m: True,
    }.get(units, units)
    options = {"whole": True, "micro_batches": 2, "settings": SIGN_DESCENT}
    _, want = alone(**options)

    def check(mesh):
        return [models.train(mesh, plan, **options, units=rule)[1] for plan in SOME]

    for results in lins.testing.run((2, 2), AXES, check):
        for plan, params in zip(SOME, results, strict=True):
            models.assert_equal(params, want, f"{units} {plan}")


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_overlap_and_prefetch_do_not_change_values(overlap, prefetch, alone):
    options = {"whole": True, "micro_batches": 2, "settings": SIGN_DESCENT}
    _, want = alone(**options)

    def check(mesh):
        return [
            models.train(mesh, plan, **options, overlap=overlap, prefetch=prefetch, units="linear")[
                1
            ]
            for plan in SOME
        ]

    for results in lins.testing.run((2, 2), AXES, check):
        for plan, params in zip(SOME, results, strict=True):
            models.assert_equal(params, want, plan)


def test_presets_are_plans():
    pairs = {
        "ddp": "P=1 G=1 OS=1",
        "zero1": "P=1 G=1 OS=2x2",
        "zero2": "P=1 G=2x2 OS=2x2",
        "zero3": "P=2x2 G=2x2 OS=2x2",
        "fsdp2": "P=2x2 G=2x2 OS=2x2",
        "hsdp": "P=2x1 G=2x1 OS=2x1",
        "mics:2": "P=2x1 G=2x1 OS=2x1",
    }

    def check(mesh):
        out = []
        for pair in pairs.items():
            layouts = []
            for policy in pair:
                model = lins.lins_shard(models.Stack(), mesh, policy)
                lins.AdamW(model)
                layouts.append(
                    {
                        n: (str(s.param.layout), str(s.exp_avg.layout))
                        for n, s in lins.states(model).items()
                    }
                )
            out.append(layouts)
        return out

    for a, b in lins.testing.run((2, 2), AXES, check)[0]:
        assert a == b


def test_policies_can_be_objects(alone):
    _, want = alone(whole=True, settings=SIGN_DESCENT)
    policy = lins.Policy(param=(2, 1), grad=(2, 1), optim=(2, 2))

    def check(mesh):
        return models.train(mesh, policy, whole=True, settings=SIGN_DESCENT)[1]

    for params in lins.testing.run((2, 2), AXES, check):
        models.assert_equal(params, want)


def test_three_axes_and_odd_groups():
    # 3 GPUs on 2 nodes, and a single axis of 3: groups that are no powers of two.
    for shape, axes, plans in [
        ((2, 3), AXES, nested((2, 3))),
        ((3,), ("gpu",), ["ddp", "zero1", "zero2", "zero3"]),
    ]:
        ranks = lins.Mesh(shape, axes).size
        _, want = models.train_alone(ranks, whole=True, settings=SIGN_DESCENT)

        def check(mesh, plans=plans):
            return [models.train(mesh, p, whole=True, settings=SIGN_DESCENT)[1] for p in plans]

        for results in lins.testing.run(shape, axes, check):
            for plan, params in zip(plans, results, strict=True):
                models.assert_equal(params, want, f"{shape} {plan}")


def test_replicas_hold_identical_bits():
    def check(mesh, plan):
        model = shard(models.Stack(), mesh, plan)
        opt = lins.AdamW(model, **ADAM)
        out = {}
        for step in range(2):
            models.backward(model, step, mesh.rank, 3)
            for name, s in lins.states(model).items():
                for kind in ("param", "grad", "exp_avg", "exp_avg_sq"):
                    x = getattr(s, kind)
                    ranges = tuple(x.layout.ranges(mesh.rank))
                    out[step, name, kind, ranges] = x.to_local().clone()
            opt.step()
        return out

    results = everywhere(check)
    shared = 0
    for plan in PLANS:
        for key, value in results[0][plan].items():
            for rank in (1, 2, 3):
                if key in results[rank][plan]:
                    shared += value.numel() > 0
                    assert torch.equal(results[rank][plan][key], value), (plan, key)
    assert shared > 100
