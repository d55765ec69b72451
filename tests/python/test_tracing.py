"""lins.trace: what is recorded, with the bytes that formulas give."""

import lins
import models
import pytest
import torch
from models import AXES, Stack


def run(fn, shape=(2, 2)):
    return lins.testing.run(shape, AXES, fn)


def test_records_of_one_redistribution():
    def check(mesh):
        d = lins.distribute_tensor(torch.arange(8.0).view(8, 1), mesh, "S0(gpu)")
        with lins.trace() as t:
            assert t.records == []
            d.redistribute("R")
            (r,) = t.records
        assert t.records == [r]
        assert (r.op, r.role, r.unit, r.axes) == ("all_gather", "other", "", "gpu")
        assert (r.bytes, r.recv_bytes) == (32, 16)
        assert 0 < r.start <= r.end
        assert r.rank == mesh.rank
        return r.group

    assert run(check) == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize(
    "src, dst, op, nbytes, received",
    [
        ("S0(gpu,node)", "R", "all_gather", 64, 48),
        ("+sum(node,gpu)", "S0(gpu,node)", "reduce_scatter", 64, 48),
        ("+sum(gpu)", "R", "all_reduce", 64, 64),
        ("O(gpu; 1)", "R", "broadcast", 64, None),
    ],
)
def test_bytes_by_operation(src, dst, op, nbytes, received):
    def check(mesh):
        layout = lins.Layout(src, shape=(16,), mesh=mesh)
        local = torch.ones(layout.local_shape(mesh.rank))
        d = lins.DTensor.from_local(local, mesh, layout)
        with lins.trace() as t:
            d.redistribute(dst)
        return t.records

    for records in run(check):
        # A flattened step, or one for each axis; sums do not depend on it.
        assert {r.op for r in records} == {op}
        assert max(r.bytes for r in records) == nbytes
        if received is not None:
            assert sum(r.recv_bytes for r in records) == received


def test_nested_traces_and_what_lies_outside():
    def check(mesh):
        d = lins.distribute_tensor(torch.ones(4), mesh, "S0(node)")
        with lins.trace() as outer:
            d.full_tensor()
            with lins.trace() as inner:
                d.full_tensor()
            d.full_tensor()
        d.full_tensor()
        assert [r.sequence for r in outer.records] == sorted(r.sequence for r in outer.records)
        return len(outer.records), len(inner.records)

    assert run(check) == [(3, 1)] * 4


def test_a_trace_sees_its_own_rank_only():
    def check(mesh):
        with lins.trace() as t:
            models.backward(lins.lins_shard(Stack(), mesh, "zero3"), 0, mesh.rank)
        return {r.rank for r in t.records}

    assert run(check) == [{0}, {1}, {2}, {3}]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_by_roles_and_units(overlap):
    def check(mesh):
        model = lins.lins_shard(Stack(depth=2), mesh, "P=2x1 G=2x1 OS=4", overlap=overlap)
        opt = lins.AdamW(model)
        with lins.trace() as t:
            models.backward(model, 0, mesh.rank, 2)
            opt.step()
        by_role = {}
        for r in t.records:
            by_role.setdefault(r.role, []).append(r)
            assert r.role in ("gather", "reduce", "update", "other")
            assert r.end >= r.start > 0
        assert {r.unit for r in by_role["gather"]} == {"root", "blocks.0", "blocks.1"}
        for r in by_role["gather"]:
            assert (r.op, r.axes, r.group) == (
                "all_gather",
                "gpu",
                [2 * (mesh.rank // 2), 2 * (mesh.rank // 2) + 1],
            )
            assert r.bytes == 4 * (32 if r.unit == "root" else 56)
        # Each block twice for each micro-batch; the root, needed from end to end, at least once.
        for unit in ("blocks.0", "blocks.1"):
            assert 2 <= sum(r.unit == unit for r in by_role["gather"]) <= 4
            # Three reductions over 2 micro-batches: G twice, and the rest once.
            assert sum(r.unit == unit for r in by_role["reduce"]) == 3
            assert sum(r.unit == unit for r in by_role["update"]) == 1
        return [(r.op, r.role, r.unit) for r in t.records if r.role in ("reduce", "update")]

    results = run(check)
    assert all(r == results[0] for r in results)  # rule 7: the same order on every rank


def test_a_groups_sequence_numbers_have_no_gaps():
    def check(mesh):
        model = lins.lins_shard(Stack(), mesh, "zero3")
        with lins.trace() as t:
            models.backward(model, 0, mesh.rank, 2)
        seen = {}
        for r in t.records:
            seen.setdefault((r.role, tuple(r.group)), []).append(r.sequence)
        for numbers in seen.values():
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    run(check)


def test_order_is_the_same_on_all_ranks_whatever_parameters_they_use():
    class Choosy(Stack):
        def forward(self, x):
            x = self.inp(x)
            for block in self.blocks:
                # Ranks that skip `down` have fewer gradients.
                x = block(x) if self.odd else x + block.up(x) * 0 + block(x).detach()
            return self.head(x)

    def check(mesh):
        model = Choosy(depth=3)
        model.odd = mesh.rank % 2
        lins.lins_shard(model, mesh, "zero2")
        with lins.trace() as t:
            models.backward(model, 0, mesh.rank, 2)
        return [(r.op, r.unit, r.axes) for r in t.records if r.role == "reduce"]

    results = run(check)
    assert all(r == results[0] for r in results)
