"""lins.states and lins.memory: what a wrapped model holds, without communication."""

import lins
import models
import pytest
import torch
from models import ADAM, AXES, Stack, nested


def test_states_equal_those_of_one_process_under_every_nested_plan():
    reference = Stack()
    opt = torch.optim.AdamW(reference.parameters(), **ADAM)
    for step in range(2):
        opt.zero_grad()
        for rank in range(4):
            models.loss_of(reference, *models.batch(step, 0, rank)).backward()
        for p in reference.parameters():
            p.grad /= 4
        opt.step()
    want = {"param": {}, "grad": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for name, p in reference.named_parameters():
        want["param"][name] = p.detach()
        want["grad"][name] = p.grad
        want["exp_avg"][name] = opt.state[p]["exp_avg"]
        want["exp_avg_sq"][name] = opt.state[p]["exp_avg_sq"]

    def check(mesh):
        out = []
        for plan in nested((2, 2)):
            model = lins.lins_shard(Stack(), mesh, plan)
            opt = lins.AdamW(model, **ADAM)
            for step in range(2):
                opt.zero_grad()
                models.backward(model, step, mesh.rank)
                opt.step()
            states = lins.states(model)
            assert states.keys() == dict(Stack().named_parameters()).keys()
            out.append(
                {
                    kind: {n: getattr(s, kind).full_tensor() for n, s in states.items()}
                    for kind in want
                }
            )
        return out

    for results in lins.testing.run((2, 2), AXES, check):
        for plan, got in zip(nested((2, 2)), results, strict=True):
            for kind in want:
                models.assert_close(got[kind], want[kind], f"{plan} {kind}")


def test_states_communicate_nothing_and_are_absent_until_made():
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero3")
        with lins.trace() as t:
            fresh = lins.states(model)
        for s in fresh.values():
            assert s.grad is s.master is s.exp_avg is s.exp_avg_sq is None
        opt = lins.AdamW(model)
        models.backward(model, 0, mesh.rank)
        with lins.trace() as t:
            states = lins.states(model)
            for s in states.values():
                s.param.to_local(), s.grad.to_local(), s.exp_avg.to_local()
                assert s.master is None  # fp32 parameters are their own masters
        assert t.records == []
        opt.zero_grad()
        assert all(s.grad is None for s in lins.states(model).values())

    lins.testing.run((2, 2), AXES, check)


@pytest.mark.parametrize(
    "plan, param, optim",
    [
        ("ddp", None, None),
        ("zero1", None, "gpu,node"),
        ("zero2", None, "gpu,node"),
        ("zero3", "gpu,node", "gpu,node"),
        ("hsdp", "gpu", "gpu"),
        ("P=2x1 G=4 OS=4", "gpu", "gpu,node"),
    ],
)
def test_layouts_follow_the_plan(plan, param, optim):
    # inp: 20 elements of the root's 32 (a multiple of four), head.bias the last two of them.
    def layout(axes, offset, total):
        return "R" if axes is None else f"F({axes}; {offset}/{total})"

    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, plan)
        lins.AdamW(model)
        models.backward(model, 0, mesh.rank)
        return lins.states(model)

    for states in lins.testing.run((2, 2), AXES, check):
        offset = 0
        for name in ("inp.weight", "inp.bias", "head.weight", "head.bias"):
            s = states[name]
            assert str(s.param.layout) == layout(param, offset, 32)
            for x in (s.grad, s.exp_avg, s.exp_avg_sq):
                assert str(x.layout) == layout(optim, offset, 32)
            assert tuple(s.param.shape) == tuple(dict(Stack().named_parameters())[name].shape)
            offset += s.param.shape[0] * (s.param.shape[1] if len(s.param.shape) == 2 else 1)


def test_states_share_memory_with_the_model():
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "P=2x1 G=2x1 OS=4")
        lins.states(model)["head.bias"].param.to_local().fill_(7.0)
        with lins.unsharded(model):
            return model.head.bias.tolist()

    assert lins.testing.run((2, 2), AXES, check) == [[7.0, 7.0]] * 4


@pytest.mark.parametrize("bf16", [False, True])
def test_memory_is_what_the_factors_say(bf16):
    def check(mesh):
        out = {}
        for p, g, o in lins.legal_plans(2, 2):
            options = {"param_dtype": torch.bfloat16, "grad_dtype": torch.float32} if bf16 else {}
            model = lins.lins_shard(Stack(), mesh, models.text((p, g, o)), **options)
            lins.AdamW(model)
            models.backward(model, 0, mesh.rank)
            # 32 elements in the root and 56 (55 and padding) in each block.
            pieces = [32, 56, 56]
            memory = lins.memory(model)
            total = sum(pieces)
            assert memory["param"] == total * (2 if bf16 else 4) // (p[0] * p[1])
            assert memory["grad"] == total * 4 // (g[0] * g[1])
            assert memory["optim"] == total * (12 if bf16 else 8) // (o[0] * o[1])
            assert memory["buffers"] == memory["live_leases"] == 0
            assert memory["pooled"] >= memory["peak_buffers"]
            out[p, g, o] = memory
        return len(out)

    assert lins.testing.run((2, 2), AXES, check) == [10] * 4


def test_states_of_a_module_inside_name_the_whole_model():
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero3")
        assert lins.states(model.blocks[0]).keys() == lins.states(model).keys()

    lins.testing.run((1, 2), AXES, check)
