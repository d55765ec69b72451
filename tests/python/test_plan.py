"""Solving from Python: interface, explanations, what-if, frontiers."""

import doctest
import json

import lins
import lins.planner
import pytest

GB = 10**9


@pytest.fixture(scope="module")
def spec():
    return lins.ModelSpec.llama("7B", seq_len=4096, micro_batch=1)


@pytest.fixture(scope="module")
def cluster():
    return lins.Cluster(nodes=4, gpus_per_node=8, profile="a800")


@pytest.fixture(scope="module")
def plan(spec, cluster):
    return lins.solve(spec, cluster, micro_batches=8)


def cells(report):
    return "\n".join("|".join(row) for table in report.tables for row in table.rows)


def test_docstring_examples_run():
    result = doctest.testmod(lins.planner)
    assert result.attempted >= 8
    assert result.failed == 0


def test_a_plan_says_what_it_is(plan):
    assert set(plan.factors) == {"param", "grad", "optim"}
    terms = ("T_p", "T_g", "T_os0", "T_os1")
    assert plan.cost["total"] == pytest.approx(sum(plan.cost[t] for t in terms))
    assert plan.cost["step"] == pytest.approx(plan.cost["compute"] + plan.cost["exposed"])
    items = {k: v for k, v in plan.memory.items() if k != "total"}
    assert plan.memory["total"] == sum(items.values())
    assert plan.slack_bytes == plan.cap_bytes - plan.memory["total"]
    assert plan.fits
    assert set(plan.policies) == {"embedding", "layers", "head"} == {u.name for u in plan.units}
    assert plan.mesh.shape == (4, 8)
    assert (plan.micro_batches, plan.family, plan.objective) == (8, "planned", "step")
    layouts = plan.layouts("layers")
    for state, text in (("param", "param"), ("grad", "grad"), ("optim", "optim")):
        pieces = 1
        for f in plan.factors[text]:
            pieces *= f
        assert layouts[state].local_shape(0)[0] * pieces == layouts[state].shape[0]
    assert "7B" in repr(plan)


def test_hand_values():
    bare = {"gathered_units": 1, "gradient_buckets": 0, "communicator_bytes": 0, "margin": 0}

    def states(parameters, nodes, state_bytes=None, **factors):
        spec = lins.ModelSpec([lins.Unit("u", parameters)], state_bytes=state_bytes)
        profile = lins.Profile.model(gpus_per_node=8, nodes=nodes)
        cluster = lins.Cluster(nodes=nodes, gpus_per_node=8, profile=profile)
        m = lins.Plan.uniform(spec, cluster, **factors, **bare).memory
        return m["param"] + m["grad"] + m["optim"]

    assert states(7 * GB, 1, param=1, grad=1, optim=8) == 38.5e9
    assert states(7 * GB, 1, param=1, grad=1, optim=1) == 112e9
    assert states(7 * GB, 1, policy="zero2") == 26.25e9
    assert states(7 * GB, 1, policy="zero3") == 14e9
    assert states(7 * GB, 1, {"moments": 2}, policy="ddp") == 70e9
    assert states(13 * GB, 1, param=4, grad=(4, 1), optim=8) == 32.5e9
    assert states(30 * GB, 4, param=(8, 1), grad=8, optim=32) == 26.25e9


def test_factors_may_be_numbers_tuples_or_text(spec, cluster):
    plans = [
        lins.Plan.uniform(spec, cluster, param=1, grad=8, optim=16),
        lins.Plan.uniform(spec, cluster, param=(1, 1), grad=[8, 1], optim=(8, 2)),
        lins.Plan.uniform(spec, cluster, policy="P=1 G=8x1 OS=16"),
    ]
    assert len({p.to_json() for p in plans}) == 1
    assert plans[0].factors == {"param": (1, 1), "grad": (8, 1), "optim": (8, 2)}
    kept = lins.Plan.uniform(spec, cluster, param=32, grad=32, optim=32, between=8)
    assert kept.factors["between"] == (8, 1)


def test_uniform_never_refuses_for_memory(spec, cluster):
    plan = lins.Plan.uniform(spec, cluster, policy="ddp", cap_bytes=1)
    assert not plan.fits
    assert plan.slack_bytes < 0
    assert any("more than the cap" in w for w in plan.explain().warnings)


def test_explain_has_the_facts(plan):
    report = plan.explain()
    titles = [t.title for t in report.tables]
    assert any("Placement" in t for t in titles)
    text = cells(report)
    for fact in ("embedding, layers x32, head", "T_p", "T_g", "T_os0", "T_os1", "slack", "zero3"):
        assert fact in text
    placement = report.tables[0]
    assert [row[1] for row in placement.rows] == ["P", "G", "OS"]
    for row, state in zip(placement.rows, ("param", "grad", "optim"), strict=True):
        assert row[2] == "x".join(map(str, plan.factors[state]))
        assert row[3] == str(plan.layouts("layers")[state])
    assert any(plan.reason in n for n in report.notes)
    assert json.dumps(report.to_dict())
    assert plan.reason in str(report)
    assert "<pre>" in report._repr_html_()


def test_explanations_warn(spec):
    def warnings(policy, spec=spec, **machines):
        cluster = lins.Cluster(**({"nodes": 1, "gpus_per_node": 8} | machines))
        return "\n".join(lins.Plan.uniform(spec, cluster, policy=policy).explain().warnings)

    large = {"memory_bytes": 2**40}
    assert "all states fit replicated" in warnings("zero3", **large)
    assert "fit replicated" not in warnings("ddp", **large)
    assert "2 ranks" in warnings("zero3", gpus_per_node=2)
    tiny = lins.ModelSpec([lins.Unit(f"u{i}", 5000, forward_flops=1e9) for i in range(9)])
    assert "bound by latency" in warnings("zero3", tiny)
    short = lins.ModelSpec.llama("7B", seq_len=16)
    assert "16 tokens per GPU" in warnings("zero3", short)
    model = lins.Profile.model(gpus_per_node=8)
    assert "not a measurement" in warnings("zero3", profile=model)


def test_extrapolated_terms_are_listed(spec):
    far = lins.Cluster(nodes=256, gpus_per_node=8, profile="a800")
    plan = lins.Plan.uniform(spec, far, policy="zero1")
    assert "T_os0" in plan.extrapolated
    assert any("T_os0 is extrapolated" in n for n in plan.explain().notes)


def test_why_lists_collectives_and_every_policy(plan):
    report = plan.why("layers")
    collectives, others = report.tables
    seconds = {row[0] for row in collectives.rows}
    assert seconds <= {"T_p", "T_g", "T_os0", "T_os1"}
    assert [row[-1] for row in others.rows].count("chosen") == 1
    assert len(others.rows) >= 15
    with pytest.raises(lins.LinsError, match="legal are embedding, layers, head"):
        plan.why("layer")


def test_why_of_a_policy_outside_the_space(spec, cluster):
    plan = lins.Plan.uniform(spec, cluster, param=32, grad=32, optim=32, between=8)
    rows = plan.why("layers").tables[1].rows
    assert [r[-1] for r in rows].count("chosen") == 1


def test_presets_are_priced_for_the_same_problem(plan):
    presets = {p["name"]: p for p in plan.presets}
    assert {"ddp", "zero1", "zero2", "zero3", "fsdp2", "hsdp", "paro-iig"} <= set(presets)
    ddp = plan.what_if(policy="ddp")
    assert presets["ddp"]["cost"] == ddp.cost
    assert presets["ddp"]["memory_bytes"] == ddp.memory["total"]


WHAT_IFS = {
    "micro_batches": 2,
    "global_tokens": 4096 * 32 * 3,
    "objective": "comm",
    "space": "full",
    "family": "paper",
    "cap_bytes": 40 * GB,
    "uniform": False,
    "split_repeats": True,
    "tie_epsilon": 0.0,
    "bucket_bytes": 2**20,
    "scales": [(8, 4), (2, 16, 0.5)],
    "prefetch": 2,
    "overlap": False,
    "overlap_update": False,
    "gathered_units": 3,
    "gradient_buckets": 1,
    "fp32_gradient_copy": True,
    "communicator_bytes": 0,
    "margin": 0.1,
    "correction_bytes": -(2**30),
    "offload": True,
    "offload_chunk_bytes": 2**20,
    "host_bandwidth": 50e9,
    "memory_bandwidth": 1.6e12,
    "optimizer": "adamw8bit",
    "micro_batch": 2,
    "recompute": "full",
    "nodes": 2,
    "gpus_per_node": 8,
    "memory_bytes": 64 * GB,
    "quota_bytes": 50 * GB,
    "flops_per_second": 1e14,
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "profile": lins.Profile.model(gpus_per_node=8, nodes=16),
    "policy": "zero2",
}


def test_every_documented_change_is_tried(plan):
    keys = set(WHAT_IFS) | {"param", "grad", "optim", "between"}
    with pytest.raises(lins.LinsError) as e:
        plan.what_if(nonsense=1)
    assert "knows no nonsense" in str(e.value)
    listed = str(e.value).split("legal are ")[1].split(", ")
    assert set(listed) == keys
    assert set(lins._planning.setting_names) < keys


@pytest.mark.parametrize("key", WHAT_IFS)
def test_what_if(plan, key):
    changed = plan.what_if(**{key: WHAT_IFS[key]})
    assert changed.fits or key == "policy"
    before, after = json.loads(plan.to_json()), json.loads(changed.to_json())
    if key not in ("policy", "gpus_per_node"):
        assert before["inputs"] != after["inputs"]
    report = lins.diff(plan, changed)
    assert any(t.title == "Cost of a step" for t in report.tables)


def test_what_if_does_what_it_says(plan):
    assert plan.what_if(cap_bytes=30 * GB).memory["total"] <= 30 * GB
    assert plan.what_if(nodes=2).mesh.shape == (2, 8)
    assert plan.what_if(tensor_parallel=2, pipeline_parallel=2).mesh.shape == (2, 4)
    assert plan.what_if(global_tokens=4096 * 32 * 3).micro_batches == 3
    assert plan.what_if(global_tokens=4096 * 16 * 3, nodes=2).micro_batches == 3
    assert plan.what_if(quota_bytes=40 * GB).cap_bytes == 40 * GB
    assert plan.what_if().to_json() == plan.to_json()
    hand = plan.what_if(param=8, grad=8, optim=32)
    assert hand.factors == {"param": (8, 1), "grad": (8, 1), "optim": (8, 4)}
    assert plan.what_if(recompute="full").memory["activations"] < plan.memory["activations"]


def test_diff_names_what_differs(plan):
    other = plan.what_if(cap_bytes=30 * GB, policy="zero3")
    tables = {t.title: t for t in lins.diff(plan, other).tables}
    assert [r[0] for r in tables["Inputs"].rows] == ["settings.cap_bytes"]
    assert {r[0] for r in tables["Placement"].rows} == {"embedding", "layers", "head"}
    same = {t.title for t in lins.diff(plan, plan).tables}
    assert same == {"Cost of a step", "Memory per GPU"}
    profile = plan.what_if(profile=lins.Profile.model(gpus_per_node=8, nodes=4), policy="zero3")
    inputs = {t.title: t for t in lins.diff(other, profile).tables}["Inputs"]
    assert {"cluster.profile.name", "cluster.profile.digest"} <= {r[0] for r in inputs.rows}


def test_diff_of_plans_with_other_units(plan):
    split = plan.what_if(uniform=False, split_repeats=True)
    placement = {t.title: t for t in lins.diff(plan, split).tables}["Placement"]
    rows = {r[0]: r[1:] for r in placement.rows}
    assert rows["layers"][1] == "-"
    assert rows["layers.31"][0] == "-"


def test_parallel_sizes_shrink_the_mesh(spec):
    cluster = lins.Cluster(nodes=4, gpus_per_node=8, tensor_parallel=4, pipeline_parallel=2)
    plan = lins.solve(spec, cluster)
    assert plan.mesh.shape == (2, 2)
    assert [u.name for u in plan.units] == ["layers", "head"]
    assert plan.units[0].repeat == 16
    with pytest.raises(lins.LinsError, match="does not divide the 32 units"):
        lins.solve(spec, lins.Cluster(nodes=3, gpus_per_node=8, pipeline_parallel=3))


def test_frontier_is_what_no_plan_beats(spec, cluster):
    plans = lins.frontier(spec, cluster, objective="comm", micro_batches=4)
    points = [(p.memory["total"], p.cost["total"]) for p in plans]
    assert points == sorted(points)
    assert [c for _, c in points] == sorted((c for _, c in points), reverse=True)
    every = [
        lins.Plan.uniform(
            spec, cluster, param=p, grad=g, optim=o, objective="comm", micro_batches=4
        )
        for p, g, o in lins.legal_plans(8, 4)
    ]
    for p in every:
        cost = (p.memory["total"], p.cost["total"])
        assert any(m <= cost[0] and c <= cost[1] for m, c in points)
    best = lins.solve(spec, cluster, objective="comm", micro_batches=4, tie_epsilon=0)
    fitting = [p for p in plans if p.fits]
    assert fitting[-1].cost["total"] == pytest.approx(best.cost["total"])
    assert "frontier" in plans[0].reason


def test_frontier_per_unit_keeps_the_problem_s_cap(spec):
    quota = lins.Cluster(nodes=1, gpus_per_node=8, quota_bytes=40 * GB)
    plans = lins.frontier(spec, quota, points=5, uniform=False, objective="comm")
    points = [(p.memory["total"], p.cost["total"]) for p in plans]
    assert points == sorted(points)
    assert all(p.cap_bytes == 40 * GB for p in plans)
    fits = [row[-1] for row in lins.explain_frontier(plans).tables[0].rows]
    assert fits == ["yes" if m <= 40 * GB else "no" for m, _ in points]
    assert "no" in fits
    with pytest.raises(lins.LinsError, match="points=1"):
        lins.frontier(spec, quota, points=1)
    with pytest.raises(lins.LinsError, match="one scale"):
        lins.frontier(spec, quota, scales=[(1, 2)])


def test_the_paper_s_table():
    plans = lins.reproduce_table3()
    assert [p.factors for p in plans] == [
        {"param": (1, 1), "grad": (1, 1), "optim": (8, 1)},
        {"param": (4, 1), "grad": (4, 1), "optim": (8, 1)},
        {"param": (8, 1), "grad": (8, 1), "optim": (8, 4)},
    ]
    report = lins.explain_table3()
    assert "chosen" in cells(report)
    assert any("predicts nothing" in n for n in report.notes)


def test_simulation(plan):
    run = plan.simulate()
    assert run.step == pytest.approx(plan.cost["step"], rel=0.03)
    assert run.exposed == pytest.approx(run.step - run.compute)
    trace = json.loads(run.chrome_trace())["traceEvents"]
    assert len(trace) == len(run.events)
    assert {e["tid"] for e in trace} <= {"links", "compute"}
