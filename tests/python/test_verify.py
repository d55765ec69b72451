"""lins.verify(): what ranks must hold alike is compared, and the first difference is named."""

import lins
import models
import pytest
import torch
from models import AXES, nested

PLANS = ["ddp", "zero1", "zero2", "zero3", "hsdp", "zero++:2", "P=1 G=2 OS=4"]


def step(model, opt, mesh, index=0, micro_batches=1):
    models.backward(model, index, mesh.rank, micro_batches)
    opt.step()
    opt.zero_grad()


def fails(fn, shape=(2, 2)):
    """The message of the error that every rank must raise in fn(mesh)."""

    def check(mesh):
        with pytest.raises(lins.LinsError) as caught:
            fn(mesh)
        return str(caught.value)

    messages = lins.testing.run(shape, AXES, check, timeout=30.0)
    assert len(set(messages)) == 1, messages
    return messages[0]


@pytest.mark.parametrize("family", ["planned", "paper"])
def test_good_training_passes_under_every_plan_and_changes_no_value(family):
    plans = nested((2, 2)) + (["zero++:2", "P=2x1 G=1 OS=4"] if family == "planned" else [])

    def check(mesh):
        for plan in plans:
            _, want = models.train(mesh, plan, steps=2, micro_batches=2, family=family)
            with lins.verify():
                _, got = models.train(mesh, plan, steps=2, micro_batches=2, family=family)
            models.assert_equal(got, want, plan)

    lins.testing.run((2, 2), AXES, check)


@pytest.mark.parametrize("plan", ["ddp", "zero1", "zero2"])
def test_a_replica_that_was_changed_is_named(plan):
    def check(mesh):
        model = lins.lins_shard(models.Stack(), mesh, plan)
        opt = lins.AdamW(model, **models.ADAM)
        step(model, opt, mesh)
        if mesh.rank == 2:
            with torch.no_grad():
                model.blocks[1].down.weight[0, 0] += 1e-3
        with lins.verify():
            step(model, opt, mesh, 1)

    message = fails(check)
    assert "step 1" in message and "after the backward" in message
    assert "before forward 0 of the unit of parameter 'blocks.1.down.weight'" in message
    assert "unit 'blocks.1'" in message
    assert "rank 2:" in message and "ranks 0, 1, 3:" in message


def test_a_shard_that_differs_between_nodes_is_named():
    def check(mesh):
        model = lins.lins_shard(models.Stack(), mesh, "hsdp")
        opt = lins.AdamW(model, **models.ADAM)
        step(model, opt, mesh)
        if mesh.rank == 3:  # the second half of node 1's copy
            lins.states(model)["head.weight"].param.to_local().add_(1)
        with lins.verify():
            step(model, opt, mesh, 1)

    message = fails(check)
    assert "'head.weight' in unit 'root'" in message
    assert "ranks 0, 1:" in message and "ranks 2, 3:" in message


@pytest.mark.parametrize("state", ["exp_avg", "exp_avg_sq", "master"])
def test_optimizer_states_that_differ_are_named(state):
    def check(mesh):
        model = lins.lins_shard(
            models.Stack(), mesh, "hsdp", param_dtype=torch.bfloat16, grad_dtype=torch.float32
        )
        opt = lins.AdamW(model, **models.ADAM)
        step(model, opt, mesh)
        if mesh.rank == 0:
            # Small enough to leave the bf16 parameters as they are.
            getattr(lins.states(model)["inp.weight"], state).to_local().mul_(1 + 1e-6)
        with lins.verify():
            step(model, opt, mesh, 1)

    message = fails(check)
    name = "the master" if state == "master" else state
    assert f"{name} after the update of parameter 'inp.weight' in unit 'root'" in message
    assert "rank 0:" in message and "rank 2:" in message


def test_gradients_that_differ_are_named():
    def check(mesh):
        model = lins.lins_shard(models.Stack(), mesh, "ddp")
        opt = lins.AdamW(model, **models.ADAM)
        with lins.verify():
            models.backward(model, 0, mesh.rank)
            if mesh.rank == 1:
                lins.states(model)["blocks.0.up.bias"].grad.to_local().neg_()
            opt.step()

    message = fails(check)
    assert "after the update" in message and "'blocks.0.up.bias' in unit 'blocks.0'" in message
    assert "rank 1:" in message and "ranks 0, 2, 3:" in message


def test_a_difference_without_a_backward_is_found_at_the_end():
    def check(mesh):
        model = lins.lins_shard(models.Stack(), mesh, "ddp")
        if mesh.rank == 1:
            with torch.no_grad():
                model.head.bias.fill_(7)
        with lins.verify(), torch.no_grad():
            model(torch.ones(2, 3))

    message = fails(check)
    assert "after the end" in message and "'head.bias'" in message


def test_operations_in_another_order_are_named():
    class Crossed(models.Stack):
        swap = False

        def forward(self, x):
            x = self.inp(x)
            for block in reversed(self.blocks) if self.swap else self.blocks:
                x = block(x)
            return self.head(x)

    def check(mesh):
        model = lins.lins_shard(Crossed(), mesh, "hsdp", prefetch=0)
        model.swap = mesh.rank >= 2  # the ranks of a node agree, the nodes do not
        with lins.verify(), torch.no_grad():
            model(torch.ones(2, 3))

    lins.testing.run((2, 2), AXES, check)  # groups of gathers lie within a node: legal

    def within(mesh):
        model = lins.lins_shard(Crossed(), mesh, "zero3", prefetch=0)
        model.swap = mesh.rank >= 2
        with torch.no_grad():
            model(torch.ones(2, 3))

    with pytest.raises(lins.LinsError, match=r"'blocks.[01]'.*'blocks.[01]'"):
        lins.testing.run((2, 2), AXES, within)


def test_an_error_inside_ends_verification():
    def check(mesh):
        model = lins.lins_shard(models.Stack(), mesh, "zero1")
        opt = lins.AdamW(model, **models.ADAM)
        with pytest.raises(ZeroDivisionError), lins.verify():
            raise ZeroDivisionError
        if mesh.rank == 1:
            with torch.no_grad():
                model.head.bias.fill_(7)
        step(model, opt, mesh)  # nobody compares

    lins.testing.run((2, 2), AXES, check)


def test_what_is_compared_is_sent_only_while_verifying():
    def check(mesh):
        model = lins.lins_shard(models.Stack(), mesh, "zero1")
        opt = lins.AdamW(model, **models.ADAM)
        counts = []
        for verifying in (False, True, False):
            with lins.trace() as t:
                if verifying:
                    with lins.verify():
                        step(model, opt, mesh)
                else:
                    step(model, opt, mesh)
            counts.append(len([r for r in t.records if r.role == "other"]))
        assert counts[0] == counts[2] < counts[1]

    lins.testing.run((2, 2), AXES, check)
