"""Policies and unit plans: the spaces, their texts, and the traffic of a step by formula."""

import itertools
import math

import lins
import pytest
from lins._planning import Placement, StateSizes, UnitPlan

FOUR_BY_EIGHT = lins.Mesh((4, 8), ("node", "gpu"))


@pytest.mark.parametrize(
    "gpus, nodes, meshes, nested, paper",
    [
        (4, 2, 4, 20, 16),
        (8, 1, 4, 20, 16),
        (8, 2, 5, 35, 25),
        (8, 4, 6, 56, 36),
        (8, 16, 8, 120, 64),
        (8, 128, 11, 286, 121),
    ],
)
def test_sizes_of_the_spaces(gpus, nodes, meshes, nested, paper):
    plans = lins.legal_plans(gpus, nodes)
    assert len(plans) == len(set(plans)) == nested
    assert plans == lins.legal_plans(gpus_per_node=gpus, nodes=nodes, space="nested")
    few = lins.legal_plans(gpus, nodes, space="paper")
    assert len(few) == paper
    assert few == [plan for plan in plans if plan[1] in (plan[0], plan[2])]
    assert len({plan[0] for plan in plans}) == meshes


@pytest.mark.parametrize("gpus, nodes", [(1, 1), (4, 2), (6, 4), (12, 3), (8, 16)])
def test_every_legal_plan_keeps_the_rules(gpus, nodes):
    for plan in lins.legal_plans(gpus, nodes):
        for f in plan:
            assert gpus % f[0] == 0 and nodes % f[1] == 0
            assert f[1] == 1 or f[0] == gpus, "crosses nodes with all GPUs of a node only"
        for fine, coarse in itertools.pairwise(plan):
            assert all(c % f == 0 for f, c in zip(fine, coarse, strict=True))


@pytest.mark.parametrize("arguments", [(0, 1), (8, 0), (-8, 1)])
def test_spaces_need_positive_sizes(arguments):
    with pytest.raises(lins.LinsError, match="must be at least 1"):
        lins.legal_plans(*arguments)


def test_an_unknown_space_is_refused():
    with pytest.raises(lins.LinsError, match="unknown space 'nestd'"):
        lins.legal_plans(8, 2, space="nestd")


@pytest.mark.parametrize(
    "text, param, grad, optim",
    [
        ("ddp", (1, 1), (1, 1), (1, 1)),
        ("zero1", (1, 1), (1, 1), (8, 4)),
        ("zero2", (1, 1), (8, 4), (8, 4)),
        ("zero3", (8, 4), (8, 4), (8, 4)),
        ("fsdp2", (8, 4), (8, 4), (8, 4)),
        ("hsdp", (8, 1), (8, 1), (8, 1)),
        ("mics:8", (8, 1), (8, 1), (8, 1)),
        ("mics:16", (8, 2), (8, 2), (8, 2)),
        ("P=1 G=1 OS=8", (1, 1), (1, 1), (8, 1)),
        ("P=4x1 G=4x1 OS=8x1", (4, 1), (4, 1), (8, 1)),
        ("OS=16 G=8 P=2", (2, 1), (8, 1), (8, 2)),
    ],
)
def test_texts_of_policies(text, param, grad, optim):
    p = Placement(text, FOUR_BY_EIGHT)
    assert (p.param, p.grad, p.optim) == (param, grad, optim)
    assert Placement(repr(p), FOUR_BY_EIGHT) == p


@pytest.mark.parametrize(
    "text, message",
    [
        ("zero4", "unknown policy 'zero4': legal are a preset (ddp, zero1, zero2, zero3"),
        ("", "unknown policy ''"),
        ("mics", "mics needs the number of ranks in a group"),
        ("mics:3", "factor 3 does not divide along Mesh(node=4, gpu=8)"),
        ("mics:64", "factor 64 is larger than the 32 ranks"),
        ("P=1 OS=8", "policy 'P=1 OS=8' must give all of P, G and OS"),
        ("P=1 P=2 G=1 OS=8", "P is given twice"),
        ("P=1 G=1 O=8", "'O=8' in policy 'P=1 G=1 O=8': states are P, G and OS"),
        ("P=1 G=1 OS=eight", "'eight' is no factor for OS"),
        ("P=0 G=1 OS=8", "'0' is no factor for P"),
        ("P=1 G=1 OS=3x1", "factor 3x1 of OS does not divide"),
        ("P=1 G=1 OS=4x4", "cuts over axis 'node' without using all 8 of 'gpu'"),
        ("P=8 G=4 OS=8", "P=8x1 is cut finer than G=4x1"),
        ("P=1 G=16 OS=8", "G=8x2 is cut finer than OS=8x1"),
        ("P=1 G=1 OS=8x2x2", "has more parts than Mesh(node=4, gpu=8) has axes"),
    ],
)
def test_bad_policies_say_what_is_wrong(text, message):
    with pytest.raises(lins.LinsError) as error:
        Placement(text, FOUR_BY_EIGHT)
    assert message in str(error.value)


SIZES = [(2, 2), (2, 4), (1, 4), (4, 1)]


def unit_plans():
    for nodes, gpus in SIZES:
        mesh = lins.Mesh((nodes, gpus), ("node", "gpu"))
        for plan in lins.legal_plans(gpus, nodes):
            text = " ".join(
                f"{name}={a}x{b}" for name, (a, b) in zip(("P", "G", "OS"), plan, strict=True)
            )
            yield pytest.param(mesh, text, id=f"{nodes}x{gpus} {text}")


@pytest.mark.parametrize("mesh, text", list(unit_plans()))
def test_unit_plan(mesh, text):
    placement = Placement(text, mesh)
    sizes = StateSizes(param=2, grad=4, master=4, moments=8)
    plan = UnitPlan(placement, numel=1001, mesh=mesh, sizes=sizes)
    d, t = mesh.size, plan.total
    p, g, o = (math.prod(f) for f in (placement.param, placement.grad, placement.optim))
    assert t == -(-1001 // d) * d

    # Layouts: nested shards of one buffer, so that every finer one lies within the coarser one.
    for rank in range(d):
        held = [x.ranges(rank)[0] for x in (plan.optim, plan.grad, plan.param)]
        assert [b - a for a, b in held] == [t // o, t // g, t // p]
        for (a, b), (c, e) in itertools.pairwise(held):
            assert c <= a <= b <= e

    # Held bytes.
    assert plan.held_bytes(sizes) == {
        "param": t // p * 2,
        "grad": t // g * 4,
        "optim": t // o * 12,
    }

    # Received bytes: each moment the least there is.
    more, copies = o // g, d // o
    assert plan.gather.recv_bytes == (t - t // p) * 2
    assert plan.update.recv_bytes == (t // p - t // o) * 2
    assert plan.accumulate.recv_bytes == (g - 1) * (t // g) * 4
    piece = -(-(t // o) // copies)  # of the all-reduce among the copies of one piece of OS
    all_reduce = (copies - 1) * piece + t // o - piece
    assert plan.reduce.recv_bytes == ((more - 1) * (t // o) + all_reduce) * 4
    for moment in (plan.gather, plan.accumulate, plan.reduce, plan.update):
        assert moment.recv_bytes >= moment.lower_bound_bytes
    for m in (1, 4):
        assert plan.traffic(m) == {
            "gather": 2 * m * plan.gather.recv_bytes,
            "accumulate": m * plan.accumulate.recv_bytes,
            "reduce": plan.reduce.recv_bytes,
            "update": plan.update.recv_bytes,
        }


@pytest.mark.parametrize("mesh, text", list(unit_plans()))
def test_a_degenerate_factor_costs_nothing_for_its_term(mesh, text):
    placement = Placement(text, mesh)
    plan = UnitPlan(placement, 1024, mesh)
    p, g, o = (math.prod(f) for f in (placement.param, placement.grad, placement.optim))
    traffic = plan.traffic(8)
    assert (traffic["gather"] == 0) == (p == 1)
    assert (traffic["accumulate"] == 0) == (g == 1)
    assert (traffic["reduce"] == 0) == (g == mesh.size)
    assert (traffic["update"] == 0) == (o == p)


def test_the_chain_is_cut_at_every_factor():
    plan = UnitPlan(Placement("P=2 G=4 OS=8x4", FOUR_BY_EIGHT), 1024, FOUR_BY_EIGHT)
    assert str(plan.param) == "S0(gpu:2)"
    assert str(plan.grad) == "S0(gpu:2,gpu:2@2) +sum(node,gpu:2@4)"
    assert str(plan.optim) == "S0(gpu:2,gpu:2@2,gpu:2@4,node)"
    assert [str(s) for s in plan.update.steps] == [
        "all_gather(gpu:2@2,gpu:2@4,node) S0(gpu:2,gpu:2@2,gpu:2@4,node) -> S0(gpu:2)"
    ]
