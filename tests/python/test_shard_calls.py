"""Ways to call units: repeated, skipped, checkpointed, without gradients, with exceptions."""

import functools

import lins
import models
import pytest
import torch
from agreement import agree, mean_gradients, sharded_gradients, whole_loss, whole_stack
from models import AXES, Stack, shard
from torch import nn
from torch.utils.checkpoint import checkpoint


class Caller(Stack):
    """Calls its blocks in one of several ways."""

    def __init__(self, how):
        super().__init__(whole=True)
        self.how = how

    def forward(self, x):
        x = self.inp(x)
        first, second = self.blocks
        if self.how == "twice":
            x = first(second(first(x)))
        elif self.how == "reversed":
            x = first(second(x))
        elif self.how == "skipped":
            x = second(x)
        elif self.how == "nested list":
            x = torch.stack([first(x), second(x)]).sum(0)
        else:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return self.head(x)


@pytest.mark.parametrize(
    "how", ["twice", "reversed", "skipped", "nested list", "checkpointed", "reentrant"]
)
def test_ways_to_call_units(how):
    make = functools.partial(Caller, how)
    agree(
        functools.partial(sharded_gradients, make, whole_loss, prefetch=2),
        functools.partial(mean_gradients, make, whole_loss),
    )


def test_checkpointing_inside_a_unit():
    class Inside(models.Block):
        def forward(self, x):
            return x + checkpoint(lambda t: self.down(self.up(t)), x, use_reentrant=False)

    def make():
        model = whole_stack()
        model.blocks = nn.ModuleList(Inside(5, True) for _ in range(2))
        return models.fill(model, True)

    agree(
        functools.partial(sharded_gradients, make, whole_loss),
        functools.partial(mean_gradients, make, whole_loss),
    )


def test_forwards_without_gradients():
    def check(mesh, plan):
        model = shard(whole_stack(), mesh, plan)
        x, _ = models.batch(0, 0, 0, True)
        want = whole_stack()(x)
        model.eval()
        with torch.no_grad():
            assert torch.equal(model(x), want)
        with torch.inference_mode():
            assert torch.equal(model(x), want)
        model.train()
        with torch.no_grad():
            model(x)
        whole_loss(model, mesh.rank).backward()
        assert lins.memory(model)["live_leases"] == 0
        return models.gradients(model)

    agree(check, functools.partial(mean_gradients, whole_stack, whole_loss))


def test_inputs_that_require_gradients_get_them():
    x0, y = models.batch(0, 0, 0, True)
    x0.requires_grad_()
    models.loss_of(whole_stack(), x0, y, True).backward()

    def check(mesh):
        model = shard(whole_stack(), mesh, "zero3")
        x = x0.detach().clone().requires_grad_()
        models.loss_of(model, x, y, True).backward()
        assert torch.equal(x.grad, x0.grad)

    lins.testing.run((2, 2), AXES, check)


class Trap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ZeroDivisionError("trap in backward")


class Failing(Stack):
    where = None

    def forward(self, x):
        x = self.blocks[0](self.inp(x))
        if self.where == "forward":
            raise ZeroDivisionError("trap in forward")
        if self.where == "backward":
            x = Trap.apply(x)
        return self.head(self.blocks[1](x))


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("overlap", [True, False])
def test_an_exception_in_a_model_is_followed_by_a_good_step(where, overlap):
    make = functools.partial(Failing, whole=True)

    def check(mesh, plan):
        model = shard(make(), mesh, plan, overlap=overlap)
        model.where = where
        with pytest.raises(ZeroDivisionError, match=f"trap in {where}"):
            whole_loss(model, mesh.rank).backward()
        model.where = None
        whole_loss(model, mesh.rank).backward()
        assert lins.memory(model)["live_leases"] == 0
        return models.gradients(model)

    agree(check, functools.partial(mean_gradients, make, whole_loss))


def test_outputs_may_be_any_structure():
    class Structured(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Inner(), Inner()])
            models.fill(self, whole=True, seed=2)

        def forward(self, x):
            state = {"x": x, "seen": []}
            for block in self.blocks:
                state = block(state=state, flag=True)
            return state

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, *, state, flag):
            assert flag
            x = self.linear(state["x"])
            return {"x": x, "seen": [*state["seen"], x]}

    def loss(model, rank):
        out = model(models.batch(0, 0, rank, True)[0])
        return out["x"].sum() + sum(t.sum() for t in out["seen"])

    agree(
        functools.partial(sharded_gradients, Structured, loss),
        functools.partial(mean_gradients, Structured, loss),
    )
