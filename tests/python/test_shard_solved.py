"""Solved plans are trained as they were planned: placements, collectives, bytes, values."""

import collections

import lins
import models
import pytest
from models import AXES, SIGN_DESCENT

STEP_KINDS_THAT_MOVE_NOTHING = ("slice", "local")


def spec_of(repeat):
    """models.Stack(depth=2, d=5), its blocks as one kind of unit or as two units."""
    blocks = (
        [lins.Unit("blocks", 55, repeat=2)]
        if repeat
        else [lins.Unit("blocks.0", 55), lins.Unit("blocks.1", 55)]
    )
    return lins.ModelSpec(units=[lins.Unit("root", 32), *blocks], state_bytes=FP32)


FP32 = {"param": 4, "grad": 4, "master": 0, "moments": 8}


def cluster_of(shape, **links):
    profile = lins.Profile.model(nodes=shape[0], gpus_per_node=shape[1], **links)
    return lins.Cluster(nodes=shape[0], gpus_per_node=shape[1], profile=profile)


def solved(shape, repeat=True, **settings):
    return lins.solve(
        spec_of(repeat), cluster_of(shape), communicator_bytes=0, margin=0, **settings
    )


def wrap(mesh, policy):
    model = lins.lins_shard(models.Stack(whole=True), mesh, policy)
    return {unit: repr(plan.placement) for unit, plan, _ in model._lins_handle.core.plans()}


@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (4, 1)], ids=str)
def test_a_uniform_plan_places_every_unit_alike(shape):
    plan = solved(shape)
    want = next(iter(plan.policies.values()))
    for placed in lins.testing.run(shape, AXES, lambda mesh: wrap(mesh, plan)):
        assert set(placed.values()) == {want}


def mixed_plans(spec):
    """Plans under which units choose differently, of many caps."""
    plans = lins.frontier(
        spec,
        cluster_of((2, 2)),
        points=60,
        uniform=False,
        objective="comm",
        communicator_bytes=0,
        margin=0,
        gathered_units=1,
        gradient_buckets=0,
    )
    mixed = [p for p in plans if p.factors is None]
    assert mixed, "no cap makes units choose differently"
    return mixed


@pytest.mark.parametrize("repeat", [True, False], ids=["one kind", "two units"])
def test_a_plan_per_unit_places_each_by_its_name(repeat):
    mixed = mixed_plans(spec_of(repeat))

    def check(mesh):
        return [wrap(mesh, p) for p in mixed[:3]]

    for placed in lins.testing.run((2, 2), AXES, check):
        for plan, of_unit in zip(mixed, placed, strict=False):
            for unit, policy in of_unit.items():
                known = unit if unit in plan.policies else unit.rpartition(".")[0]
                assert policy == plan.policies[known]


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("inter", [1e8, 1e12], ids=["slow links", "fast links"])
def test_whole_numbers_train_bit_for_bit_under_solved_plans(micro_batches, inter):
    want_grads, want_params = models.train_alone(
        4, whole=True, micro_batches=micro_batches, settings=SIGN_DESCENT
    )
    cluster = cluster_of((2, 2), inter_bandwidth=inter, inter_latency=1e-6)
    policies = ["ddp", "zero1", "zero3", "hsdp", "P=1 G=2 OS=4", "P=2 G=2 OS=4"]
    plans = [
        lins.Plan.uniform(spec_of(True), cluster, policy=p, micro_batches=micro_batches)
        for p in policies
    ]

    def check(mesh):
        options = {"whole": True, "micro_batches": micro_batches, "settings": SIGN_DESCENT}
        return [models.train(mesh, p, **options) for p in plans]

    for results in lins.testing.run((2, 2), AXES, check):
        for plan, (grads, params) in zip(plans, results, strict=True):
            for step in range(3):
                models.assert_equal(grads[step], want_grads[step], repr(plan))
            models.assert_equal(params, want_params, repr(plan))


@pytest.mark.parametrize("inter", [1e8, 1e12], ids=["slow links", "fast links"])
def test_the_trace_shows_the_plans_bytes_and_collectives(inter):
    cluster = cluster_of((2, 2), inter_bandwidth=inter, inter_latency=1e-6)
    plans = [
        lins.Plan.uniform(spec_of(True), cluster, policy=p, micro_batches=2)
        for p in ("ddp", "zero1", "zero3", "hsdp", "P=1 G=2 OS=4")
    ]

    def check(mesh):
        out = []
        for plan in plans:
            model = lins.lins_shard(models.Stack(), mesh, plan)
            opt = lins.AdamW(model, lr=1e-3)
            counts = []
            for step in range(2):
                with lins.trace() as t:
                    models.backward(model, step, mesh.rank, micro_batches=2)
                    opt.step()
                    opt.zero_grad()
                    with lins.unsharded(model):
                        pass  # waits for the updates
                counts.append([r for r in t.records if r.role in ("gather", "reduce", "update")])
            updates = sum(r.recv_bytes for r in counts[1] if r.role == "update")
            reduces = sum(r.recv_bytes for r in counts[1] if r.role == "reduce")
            out.append((reduces, updates, collections.Counter(r.op for r in counts[1])))
        return out

    ranks = lins.testing.run((2, 2), AXES, check)
    for i, plan in enumerate(plans):
        reduces = max(rank[i][0] for rank in ranks)
        updates = max(rank[i][1] for rank in ranks)
        assert reduces == plan.recv_bytes["T_g"] + plan.recv_bytes["T_os0"], plan
        assert updates == plan.recv_bytes["T_os1"], plan
        assert len({str(sorted(rank[i][2].items())) for rank in ranks}) == 1


def test_plans_that_cannot_be_run_are_refused_on_every_rank():
    other_mesh = solved((4, 1))
    unlike = lins.ModelSpec(units=[lins.Unit("trunk", 32), lins.Unit("leaf", 55, repeat=2)])
    strangers = mixed_plans(unlike)[0]

    def check(mesh):
        said = []
        for policy in (other_mesh, strangers):
            with pytest.raises(lins.LinsError) as e:
                lins.lins_shard(models.Stack(), mesh, policy)
            said.append(str(e.value))
        return said

    for said in lins.testing.run((2, 2), AXES, check):
        assert "Mesh(node=4, gpu=1)" in said[0] and "Mesh(node=2, gpu=2)" in said[0]
        assert "no choice for unit 'root': it has trunk, leaf" in said[1]


def test_ranks_with_different_plans_all_get_an_error():
    plans = [
        lins.Plan.uniform(spec_of(True), cluster_of((2, 2)), policy=p) for p in ("ddp", "zero1")
    ]

    def check(mesh):
        with pytest.raises(lins.LinsError, match="policy"):
            lins.lins_shard(models.Stack(), mesh, plans[mesh.rank % 2])

    lins.testing.run((2, 2), AXES, check)


def test_a_policy_without_factors_is_solved_for_when_wrapping():
    want_grads, want_params = models.train_alone(4, whole=True, settings=SIGN_DESCENT)
    roomy = lins.Policy(cap_bytes=2**40)
    tight = lins.Policy(objective="comm", cap_bytes=2 * 2**30, micro_batches=2)

    def check(mesh):
        options = {"whole": True, "settings": SIGN_DESCENT}
        sample = lins.Policy(sample=models.batch(0, 0, 0, whole=True)[0], cap_bytes=2**40)
        placed = [wrap(mesh, p) for p in (roomy, tight, sample)]
        return placed, models.train(mesh, roomy, **options)

    for placed, (grads, params) in lins.testing.run((2, 2), AXES, check):
        assert all(len(set(units.values())) == 1 for units in placed)
        for step in range(3):
            models.assert_equal(grads[step], want_grads[step])
        models.assert_equal(params, want_params)


def test_a_policy_that_nothing_satisfies_is_infeasible_on_every_rank():
    def check(mesh):
        with pytest.raises(lins.Infeasible, match="no plan of Stack"):
            lins.lins_shard(models.Stack(), mesh, lins.Policy(cap_bytes=1000))

    lins.testing.run((2, 2), AXES, check)


def test_a_policy_gives_all_factors_or_none():
    with pytest.raises(lins.LinsError, match="all of param, grad and optim, or none"):
        lins.Policy(param=(2, 1))
