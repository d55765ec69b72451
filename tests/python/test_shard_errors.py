"""What users get wrong: errors that say what was given and what is legal, on every rank."""

import re
import time

import lins
import models
import pytest
import torch
from models import AXES, Stack
from torch import nn


def errors(fn, shape=(2, 2), timeout=20.0):
    """The LinsErrors that fn(mesh) raises, one by rank. Fails for a rank without, or a wait."""

    def check(mesh):
        with pytest.raises(lins.LinsError) as caught:
            fn(mesh)
        return caught.value

    start = time.monotonic()
    out = lins.testing.run(shape, AXES, check, timeout=timeout)
    assert time.monotonic() - start < 10
    return out


def refuse(fn, *patterns, shape=(2, 2)):
    """fn raises on every rank an error that matches all patterns."""
    for rank, e in enumerate(errors(fn, shape)):
        for pattern in patterns:
            assert re.search(pattern, str(e)), f"rank {rank}: no {pattern!r} in: {e}"
        assert isinstance(e, ValueError | RuntimeError)


def shard(policy="zero3", model=None, **options):
    return lambda mesh: lins.lins_shard(model() if model else Stack(), mesh, policy, **options)


@pytest.mark.parametrize(
    "policy, patterns",
    [
        ("zero4", ["unknown policy 'zero4'", "ddp, zero1, zero2, zero3"]),
        ("P=1 G=1", ["P=1 G=1", "OS"]),
        ("P=1 G=1 OS=3", ["factor 3", "ranks of a node \\(2\\)"]),
        ("P=4 G=1 OS=2", ["P=2x2 is cut finer than G=1x1", "P <= G <= OS"]),
        ("P=1 G=4 OS=2", ["G=2x2 is cut finer than OS=2x1", "P <= G <= OS"]),
        ("P=1x2 G=1x2 OS=2x2", ["1x2"]),
        ("P=1 G=1 OS=4x1", ["4"]),
        ("P=1 G=1 OS=8", ["8", "4"]),
        ("mics:3", ["3"]),
        ("P=a G=1 OS=1", ["a"]),
        (lins.Policy(param=(4, 1), grad=(2, 1), optim=(2, 2)), ["4x1"]),
        (lins.Policy(param=1, grad=1, optim=1, family="paprika"), ["'paper'", "'planned'"]),
        (lins.Policy(param=4, grad=1, optim=4, family="paper"), ["P=2x2 is cut finer than G=1x1"]),
        (17, ["17", "legal are a preset"]),
        (None, ["None", "legal are"]),
    ],
    ids=str,
)
def test_policies_that_are_not_legal(policy, patterns):
    refuse(shard(policy), *patterns)


@pytest.mark.parametrize(
    "options, patterns",
    [
        ({"units": "blocks"}, ["'blocks'", "'block', 'linear' and a function"]),
        ({"units": 3}, ["3", "legal are"]),
        ({"prefetch": -1}, ["prefetch=-1", "at least 0"]),
        ({"param_dtype": torch.int32}, ["int32", "floating"]),
        ({"grad_dtype": "bf16"}, ["bf16", "floating"]),
        ({"reduce_dtype": torch.complex64}, ["complex64", "floating"]),
        ({"init": "rank0"}, ["'rank0'", "'broadcast' and 'check'"]),
        ({"family": "best"}, ["'best'", "'paper'", "'planned'"]),
    ],
    ids=str,
)
def test_options_that_are_not_legal(options, patterns):
    refuse(shard(**options), *patterns)


def test_what_cannot_be_wrapped():
    refuse(lambda mesh: lins.lins_shard(lambda x: x, mesh, "ddp"), "function is no torch.nn.Module")

    def twice(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero3")
        lins.lins_shard(model, mesh, "zero3")

    def around(mesh):
        model = Stack()
        lins.lins_shard(model.blocks[0], mesh, "zero3")
        lins.lins_shard(model, mesh, "zero3")

    refuse(twice, "Stack is wrapped already")
    refuse(around, "Stack is wrapped already, in whole or in part")


def test_an_abstract_mesh_cannot_run():
    mesh = lins.Mesh((2, 2), AXES)
    with pytest.raises(lins.LinsError, match=r"Mesh\(node=2, gpu=2\) has no processes.*init_mesh"):
        lins.lins_shard(Stack(), mesh, "zero3")


def test_a_mesh_must_be_as_large_as_the_world():
    def check(mesh):
        from lins import _core

        _core.LiveMesh(mesh.world, [2, 4], list(AXES))

    refuse(check, "8", "4")
    with pytest.raises(lins.LinsError, match=r"4.*1"):
        lins.init_mesh((2, 2), AXES)


def test_what_is_not_wrapped_has_no_states():
    for fn in (lins.states, lins.memory, lins.AdamW, lambda m: lins.clip_grad_norm_(m, 1.0)):
        with pytest.raises(lins.LinsError, match="Linear is not wrapped: call lins_shard"):
            fn(nn.Linear(2, 2))


# --- ranks that disagree


@pytest.mark.parametrize(
    "make, patterns",
    [
        (lambda r: ("zero3" if r else "zero2", Stack(), {}), ["the policy", "P=1x1", "P=2x2"]),
        (lambda r: ("zero3" if r else "zreo3", Stack(), {}), ["the policy", "zreo3"]),
        (lambda r: ("zero3", Stack(d=4 + (r == 2)), {}), ["the model and its plan", "rank 2"]),
        (lambda r: ("zero3", Stack(depth=2 + (r == 3)), {}), ["the model and its plan", "rank 3"]),
        (lambda r: ("zero3", Stack(), {"units": "linear" if r else "block"}), ["the model"]),
        (lambda r: ("zero3", Stack(), {"prefetch": r}), ["prefetch=0", "prefetch=1"]),
        (lambda r: ("zero3", Stack().bfloat16() if r else Stack(), {}), ["BFloat16", "Float"]),
        (
            lambda r: ("zero3", Stack(seed=int(r == 1)), {"init": "check"}),
            ["initial values of unit", "inp.weight|inp.bias|head", "rank 1"],
        ),
    ],
    ids=[
        "policies",
        "a typo on one rank",
        "sizes",
        "depths",
        "units",
        "prefetch",
        "dtypes",
        "initial values",
    ],
)
def test_ranks_that_disagree_all_say_so(make, patterns):
    def check(mesh):
        policy, model, options = make(mesh.rank)
        lins.lins_shard(model, mesh, policy, **options)

    refuse(check, "ranks disagree about", *patterns)


def test_equal_initial_values_pass_the_check():
    lins.testing.run((2, 2), AXES, shard(init="check"))


@pytest.mark.parametrize("plan", ["ddp", "zero2", "zero3"])
@pytest.mark.parametrize("overlap", [True, False])
def test_ranks_with_unlike_numbers_of_micro_batches(plan, overlap):
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, plan, overlap=overlap)
        models.backward(model, 0, mesh.rank, 2 if mesh.rank == 1 else 3)

    refuse(check, "number of micro-batches", "3, 2, 3, 3")


# --- micro-batches and steps


@pytest.mark.parametrize(
    "index, count, divisor, patterns",
    [
        (0, 0, None, ["index 0 of 0"]),
        (3, 3, None, ["index 3 of 3", "0 to count - 1"]),
        (-1, 3, None, ["index -1 of 3"]),
        (1, 3, None, ["micro-batch 1 of 3 cannot follow", "expected index 0"]),
        (0, 1, 0.0, ["divisor 0"]),
        (0, 1, -2.0, ["divisor -2"]),
        (0, 1, float("nan"), ["divisor nan"]),
    ],
)
def test_micro_batches_out_of_range(index, count, divisor, patterns):
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero3")
        with lins.micro_batch(model, index=index, count=count, divisor=divisor):
            pytest.fail("got in")

    refuse(check, *patterns)


def test_micro_batches_out_of_order():
    def check(mesh, *pairs):
        model = lins.lins_shard(Stack(), mesh, "zero3")
        for m, count in pairs:
            with lins.micro_batch(model, index=m, count=count):
                models.loss_of(model, *models.batch(0, m, mesh.rank)).backward()

    refuse(lambda mesh: check(mesh, (0, 3), (2, 3)), "micro-batch 2 of 3 cannot", "index 1 of 3")
    refuse(lambda mesh: check(mesh, (0, 3), (1, 4)), "micro-batch 1 of 4 cannot", "index 1 of 3")
    refuse(lambda mesh: check(mesh, (0, 2), (1, 2), (1, 2)), "micro-batch 1 of 2", "index 0")


def test_index_0_discards_an_unfinished_accumulation():
    want, _ = models.train_alone(4, steps=1, micro_batches=2, whole=True)

    def check(mesh):
        model = lins.lins_shard(Stack(whole=True), mesh, "P=2x1 G=2x1 OS=4")
        with lins.micro_batch(model, index=0, count=3):
            models.loss_of(model, *models.batch(9, 9, mesh.rank, True), True).backward()
        models.backward(model, 0, mesh.rank, 2, whole=True)
        return models.gradients(model)

    for got in lins.testing.run((2, 2), AXES, check):
        models.assert_equal(got, want[0])


def test_a_step_in_the_middle_of_an_accumulation():
    def check(mesh, action):
        model = lins.lins_shard(Stack(), mesh, "zero2")
        opt = lins.AdamW(model)
        with lins.micro_batch(model, index=0, count=3):
            models.loss_of(model, *models.batch(0, 0, mesh.rank)).backward()
        action(model, opt)

    for action in (lambda m, o: o.step(), lambda m, o: lins.clip_grad_norm_(m, 1.0)):
        refuse(
            lambda mesh, action=action: check(mesh, action),
            "after micro-batch 0 of 3",
            r"2 more .*index=1, count=3",
        )


# --- optimizers


@pytest.mark.parametrize(
    "options, pattern",
    [
        ({"param_groups": [{"params": ["nope.weight"]}]}, "no parameter 'nope.weight'.*head.bias"),
        (
            {"param_groups": [{"params": ["inp.bias"]}, {"params": ["inp.bias"]}]},
            r"shape \(5,\) is in two param_groups",
        ),
        (
            {"param_groups": [{"params": [torch.zeros(7)]}]},
            r"shape \(7,\).*not the model's",
        ),
        ({"lr": -1.0}, "lr=-1.0: legal is lr >= 0"),
        ({"eps": -1e-8}, "eps=-1e-08"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"betas": (1.0, 0.9)}, r"beta1=1.0: legal is beta1 in \[0, 1\)"),
        ({"betas": (0.9, -0.1)}, "beta2=-0.1"),
        ({"param_groups": [{"params": ["inp.bias"], "lr": -3.0}]}, "lr=-3.0"),
    ],
)
def test_optimizer_options_that_are_not_legal(options, pattern):
    refuse(lambda mesh: lins.AdamW(lins.lins_shard(Stack(), mesh, "zero3"), **options), pattern)


def test_groups_cannot_be_added_later():
    def check(mesh):
        opt = lins.AdamW(lins.lins_shard(Stack(), mesh, "zero3"))
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})

    refuse(check, "param_groups are fixed")


def test_norms_that_are_not_legal():
    def check(mesh, *args):
        model = lins.lins_shard(Stack(), mesh, "zero3")
        models.backward(model, 0, mesh.rank)
        lins.clip_grad_norm_(model, *args)

    refuse(lambda mesh: check(mesh, 1.0, 3.0), "3", "1, 2 and inf")
    refuse(lambda mesh: check(mesh, -1.0), "max_norm=-1.0")
    refuse(lambda mesh: check(mesh, float("nan")), "max_norm=nan")


# --- collectives that fail (rule 8)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("role, op", [("gather", "all_gather"), ("reduce", "reduce_scatter")])
def test_a_failing_collective_raises_on_its_rank_with_all_details(role, op, overlap):
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero3", overlap=overlap)
        if mesh.rank == 1:
            lins.testing.failure(role=role, unit="blocks.1", message="the cable is loose")
        models.backward(model, 0, mesh.rank)

    with pytest.raises((lins.LinsError, RuntimeError)) as caught:
        lins.testing.run((2, 2), AXES, check, timeout=20.0)
    message = str(caught.value)
    for part in (op, f"role {role}", "blocks.1", "group [", "sequence", "bytes", "elapsed"):
        assert part in message, message
    assert "the cable is loose" in message
    assert "rank 1" in caught.value.__notes__[0]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_rank_that_stays_away_times_out_on_the_others(overlap):
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero3", overlap=overlap)
        if mesh.rank == 3:
            time.sleep(2.0)
            return "away"
        with pytest.raises((lins.LinsError, RuntimeError), match="time-out 1 s"):
            models.backward(model, 0, mesh.rank)
        return "raised"

    # The whole run has the same limit as a collective, so rank 3 is reported late, or all end.
    with pytest.raises(lins.LinsError, match=r"ranks \[.*3.*\] did not end within 1"):
        lins.testing.run((2, 2), AXES, check, timeout=1.0)


def test_a_unit_skipped_by_some_ranks_raises_where_it_would_be_gathered():
    class Skipping(Stack):
        skip = False

        def forward(self, x):
            x = self.blocks[0](self.inp(x))
            return self.head(x if self.skip else self.blocks[1](x))

    def check(mesh, plan):
        model = lins.lins_shard(Skipping(whole=True), mesh, plan, prefetch=0)
        model.skip = mesh.rank == 1
        models.backward(model, 0, mesh.rank, whole=True)
        return models.gradients(model)

    # P needs no gather: the rank that skips contributes zeros.
    for plan in ("ddp", "zero2"):
        reference = Skipping(whole=True)
        for rank in range(4):
            reference.skip = rank == 1
            models.loss_of(reference, *models.batch(0, 0, rank, True), True).backward()
        want = {n: p.grad / 4 for n, p in reference.named_parameters()}
        for got in lins.testing.run((2, 2), AXES, lambda mesh, plan=plan: check(mesh, plan)):
            models.assert_equal(got, want, plan)


def test_a_parameter_used_outside_its_unit_is_an_error():
    class Leaky(Stack):
        def forward(self, x):
            return super().forward(x) + self.blocks[1].up.bias.sum()

    def check(mesh):
        model = lins.lins_shard(Leaky(), mesh, "zero3", prefetch=0)
        with pytest.raises(RuntimeError, match=r"unit 'blocks\.1' are cut over 4 ranks"):
            models.backward(model, 0, mesh.rank)

    lins.testing.run((2, 2), AXES, check)
