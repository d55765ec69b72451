"""Parameters are complete while their unit computes, freed after, and read and written whole."""

import lins
import models
import pytest
import torch
from agreement import agree, everywhere, whole_loss, whole_stack
from models import AXES, shard
from torch import nn


def test_cut_parameters_are_complete_in_forward_and_freed_after():
    def check(mesh):
        model = whole_stack()
        want = models.clone(model.named_parameters())
        seen = []

        def look(module, _):
            seen.append(torch.equal(module.up.weight, want[f"blocks.{len(seen) % 2}.up.weight"]))

        shard(model, mesh, "zero3")
        for block in model.blocks:
            block.register_forward_pre_hook(look)
        loss = whole_loss(model, 0)
        for action in (lambda: model.blocks[0].up.weight + 1, lambda: model.inp.bias.tolist()):
            with pytest.raises(
                RuntimeError, match=r"cut over 4 ranks and not gathered.*lins\.unsharded"
            ):
                action()
        loss.backward()
        with pytest.raises(RuntimeError, match=r"unit 'blocks\.1'"):
            print(model.blocks[1].down.weight)
        held = lins.memory(model)
        assert held["buffers"] == held["live_leases"] == 0
        return seen

    assert lins.testing.run((2, 2), AXES, check) == [[True, True]] * 4


def test_parameters_that_are_not_cut_can_always_be_read():
    def check(mesh):
        model = whole_stack()
        want = models.clone(model.named_parameters())
        shard(model, mesh, "zero2")
        models.assert_equal(models.clone(model.named_parameters()), want)

    lins.testing.run((2, 2), AXES, check)


def test_unsharded_reads_and_writes():
    def check(mesh, plan):
        model = whole_stack()
        want = models.clone(model.named_parameters())
        shard(model, mesh, plan)
        with lins.unsharded(model):
            models.assert_equal(models.clone(model.named_parameters()), want)
        with lins.unsharded(model.blocks[0], writeback=True), torch.no_grad():
            for p in model.blocks[0].parameters():
                p.mul_(3)
        for name in want:
            if name.startswith("blocks.0"):
                want[name] *= 3
        models.assert_equal(models.parameters(model), want)
        with lins.unsharded(model), lins.unsharded(model.blocks[1]):
            models.assert_equal(models.clone(model.named_parameters()), want)
        return True

    everywhere(check)


def test_what_unsharded_does_not_write_back_is_lost_where_parameters_are_cut():
    def check(mesh):
        model = shard(whole_stack(), mesh, "zero3")
        want = models.parameters(model)
        with lins.unsharded(model), torch.no_grad():
            model.head.bias.fill_(100)
        models.assert_equal(models.parameters(model), want)
        with (
            pytest.raises(ZeroDivisionError),
            lins.unsharded(model, writeback=True),
            torch.no_grad(),
        ):
            model.head.bias.fill_(100)
            raise ZeroDivisionError
        models.assert_equal(models.parameters(model), want)
        assert lins.memory(model)["live_leases"] == 0

    lins.testing.run((2, 2), AXES, check)


def test_ranks_start_with_the_values_and_buffers_of_rank_0():
    class Normed(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3)])
            models.fill(self, False, seed)
            self.blocks[1].running_mean.fill_(seed)

    want = models.clone(Normed(0).state_dict().items())

    def check(mesh, plan):
        model = shard(Normed(seed=mesh.rank), mesh, plan)
        return {**models.clone(model.named_buffers()), **models.parameters(model)}

    agree(check, lambda: want)
