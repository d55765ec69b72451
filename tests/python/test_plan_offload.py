"""Planning with optimizer states in host memory, by optimizer, and with the optimizer's seconds."""

import json

import lins
import pytest
from lins._planning import moment_bytes, optimizer_bytes
from plan_commands import PROBLEM, run


@pytest.fixture(scope="module")
def spec():
    return lins.ModelSpec.llama("7B", seq_len=4096, micro_batch=1)


@pytest.fixture(scope="module")
def cluster():
    return lins.Cluster(nodes=2, gpus_per_node=8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    run("plan", *PROBLEM, "-o", path)
    return path


def test_offload_moves_bytes_and_costs_seconds(spec, cluster):
    on = lins.Plan.uniform(spec, cluster, policy="zero1")
    off = lins.Plan.uniform(spec, cluster, policy="zero1", offload=True)
    assert (on.offload, off.offload) == (False, True)
    assert off.host_memory["optim"] == on.memory["optim"] > 0
    assert on.host_memory["optim"] == off.memory["optim"] == 0
    assert off.memory["staging"] == 3 * 32 * 2**20
    items = {k: v for k, v in off.memory.items() if k != "total"}
    assert off.memory["total"] == sum(items.values())
    seconds = 2 * off.host_memory["optim"] / 25e9
    assert off.cost["offload"] == pytest.approx(seconds)
    assert off.cost["step"] == pytest.approx(on.cost["step"] + seconds)
    assert on.cost["offload"] == on.cost["optimizer"] == 0
    assert off.simulate().optimizer == pytest.approx(seconds)


def test_bandwidths_are_the_clusters(spec):
    def priced(offload=True, **options):
        cluster = lins.Cluster(nodes=2, gpus_per_node=8, **options)
        return lins.Plan.uniform(spec, cluster, policy="zero1", offload=offload)

    assumed = priced()
    assert assumed.cluster.host_bandwidth == 25e9
    assert any("assumed" in n for n in assumed.explain().notes)
    fast = priced(host_bandwidth=100e9)
    assert fast.cost["offload"] == pytest.approx(assumed.cost["offload"] / 4)
    assert not any("assumed" in n for n in fast.explain().notes)
    own = priced(offload=False, memory_bandwidth=1.6e12)
    assert own.cost["optimizer"] == pytest.approx(own.memory["optim"] / 12 * 28 / 1.6e12)
    assert own.cost["step"] == pytest.approx(
        own.cost["compute"] + own.cost["exposed"] + own.cost["optimizer"]
    )
    for name in ("host_bandwidth", "memory_bandwidth"):
        with pytest.raises(lins.LinsError, match=f"{name}=-1"):
            lins.Cluster(nodes=1, gpus_per_node=8, **{name: -1.0})


def test_what_if_and_diff_know_it(spec, cluster):
    plan = lins.solve(spec, cluster)
    changed = plan.what_if(offload=True, host_bandwidth=50e9)
    assert changed.offload and changed.cluster.host_bandwidth == 50e9
    text = str(lins.diff(plan, changed))
    for part in ("settings.memory.offload", "cluster.host_bandwidth", "optim in host memory"):
        assert part in text
    smaller = plan.what_if(optimizer="adamw8bit", policy="ddp")
    assert smaller.memory["optim"] == plan.what_if(policy="ddp").memory["optim"] / 12 * 6
    with pytest.raises(lins.LinsError, match="unknown optimizer 'adamax'"):
        plan.what_if(optimizer="adamax")


def test_a_saved_plan_keeps_it(spec, cluster, tmp_path):
    path = tmp_path / "plan.json"
    plan = lins.solve(spec, cluster, offload=True, offload_chunk_bytes=2**20)
    plan.save(path)
    content = json.loads(path.read_text())
    assert content["inputs"]["settings"]["memory"]["offload"] == 1
    assert content["host_memory"]["optim"] == plan.host_memory["optim"]
    again = lins.Plan.load(path, spec, cluster)
    assert again.offload and again.offload_chunk_bytes == 2**20
    assert again.to_json() == plan.to_json()
    assert lins.solve(spec, cluster, offload=True, cache=tmp_path).offload
    assert not lins.solve(spec, cluster, cache=tmp_path).offload


def test_infeasible_plans_mention_it():
    with pytest.raises(lins.Infeasible, match="offload=True") as e:
        lins.solve(lins.ModelSpec.llama("30B"), lins.Cluster(nodes=1, gpus_per_node=8))
    assert any(s.startswith("offload=True: needs ") for s in e.value.suggestions)


def test_optimizer_bytes_lists_what_moment_bytes_knows():
    assert {n: moment_bytes(n) for n in optimizer_bytes()} == optimizer_bytes()


# --- commands


@pytest.mark.parametrize("optimizer", ["adamw8bit", "lion", "sgd"])
def test_plan_takes_an_optimizer(optimizer):
    inputs = json.loads(run("plan", *PROBLEM, "--optimizer", optimizer, "--json").stdout)["inputs"]
    assert inputs["model"]["state_bytes"]["moments"] == moment_bytes(optimizer)


def test_plan_takes_offload_and_bandwidths():
    args = ["--offload", "--host-bandwidth", "5e10", "--memory-bandwidth", "1.6e12"]
    content = json.loads(run("plan", *PROBLEM, *args, "--json").stdout)
    assert content["inputs"]["settings"]["memory"]["offload"] == 1
    assert content["inputs"]["cluster"]["host_bandwidth"] == 5e10
    assert content["inputs"]["cluster"]["memory_bandwidth"] == 1.6e12
    assert content["cost"]["offload"] > content["cost"]["optimizer"] > 0
    shown = run("plan", *PROBLEM, *args).stdout
    for part in ("optim in host memory", "to and from host memory", "staging"):
        assert part in shown
    assert json.loads(run("frontier", *PROBLEM, *args, "--json").stdout)["tables"]


def test_what_if_takes_them(saved):
    args = ["--offload", "--optimizer", "lion", "--policy", "zero1", "--host-bandwidth", "5e10"]
    rows = json.loads(run("what-if", saved, *args, "--json").stdout)["tables"][0]["rows"]
    changed = {r[0]: r[2] for r in rows}
    assert changed["settings.memory.offload"] == "1"
    assert changed["model.state_bytes.moments"] == "4"
    assert "cluster.host_bandwidth" in changed
    run("what-if", saved, "--no-offload", "--memory-bandwidth", "1e12")


def test_simulate_shows_the_optimizers_seconds(tmp_path):
    path = tmp_path / "plan.json"
    run("plan", *PROBLEM, "--offload", "-o", path)
    facts = json.loads(run("simulate", path, "--json").stdout)
    assert facts["optimizer"] > 0
    assert facts["step"] == pytest.approx(facts["compute"] + facts["exposed"] + facts["optimizer"])
    assert "optimizer" in run("simulate", path).stdout


def test_help_and_mistakes():
    shown = run("plan", "--help").stdout
    for option in ("--optimizer", "--offload", "--host-bandwidth", "--memory-bandwidth"):
        assert option in shown
        assert option in run("what-if", "--help").stdout
    assert "adamw8bit" in run("plan", "--optimizer", "adamax", code=2).output
    assert "host_bandwidth" in run("plan", "--host-bandwidth", "-1", code=2).output
