"""The parts of benchmarks/step.py that decide something, and one short run of all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lins
import pytest
from models import AXES

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from training import cluster, report  # noqa: E402
from training.model import Shape, build  # noqa: E402
from training.predict import node_bytes  # noqa: E402

TINY = Shape(dim=16, layers=2, heads=2, hidden=24, vocabulary=32, seq_len=8)


def made_up_run(losses, settings=()):
    ranks = [{"seconds": {}, "sent": {}, "losses": losses} for _ in range(4)]
    return {"settings": dict(settings), "ranks": ranks, "predictions": {}}


def test_bytes_between_nodes_follow_from_the_plans():
    def check(mesh):
        out = {}
        for policy in ("ddp", "hsdp", "P=2x1 G=2x1 OS=2x2"):
            model = lins.lins_shard(build(TINY), mesh, policy)
            padded = 4 * sum(p.total for _, p, _ in lins.sharding.handle_of(model).core.plans())
            out[policy] = node_bytes(model, mesh, 3) / padded
        return out

    for got in lins.testing.run((2, 2), AXES, check):
        # Each GPU's half: an all-reduce with its peer sends as much as it holds.
        assert got["hsdp"] == 1
        # Reduced to a quarter, and gathered back to a half: half as much each.
        assert got["P=2x1 G=2x1 OS=2x2"] == 1
        assert got["ddp"] in (1, 2)  # node first, or in one go


def test_losses_that_disagree_are_found():
    alike = {"alone": [9.0, 9.0], "a": [1.0, 0.5], "b": [1.0, 0.5 + 1e-6]}
    assert report.check(made_up_run(alike)) == ""
    assert "the losses of b differ" in report.check(made_up_run(alike | {"b": [1.0, 0.6]}))
    assert "differ" in report.check(made_up_run(alike | {"b": [1.0, float("nan")]}))


def test_ratios_are_of_the_same_round():
    run = made_up_run({})
    run["ranks"][0]["seconds"] = {"a": [2.0, 6.0, 4.0], "b": [1.0, 1.0, 1.0]}
    for r in run["ranks"][1:]:
        r["seconds"] = {"a": [1.0, 1.0, 1.0], "b": [1.0, 2.0, 1.0]}  # not the slowest of a
    assert report.ratios(run, "a", "b").median == 3


def test_without_rights_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(cluster.ClusterError, match=r"not running as root\. .*--one-host"):
        cluster.Link(1.0).__enter__()


def test_nodes_are_gone_after_any_end():
    names = []
    try:
        with pytest.raises(ZeroDivisionError), cluster.Link(1.0) as link:
            names = link.nodes
            assert set(names) <= set(cluster._existing())
            raise ZeroDivisionError
    except cluster.ClusterError as e:
        pytest.skip(str(e))
    assert not set(names) & set(cluster._existing())
    # One whose process is gone is removed, ours would stay.
    cluster._run("ip", "netns", "add", "lins-step-99999999-0")
    assert "lins-step-99999999-0" in cluster.leftovers()
    assert "lins-step-99999999-0" not in cluster._existing()


def test_a_short_run_on_one_host(tmp_path):
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    lins.Profile.model(nodes=2, gpus_per_node=2).save(profiles / "profile-one-host.json")
    sizes = [f"--{k.replace('_', '-')}={v}" for k, v in vars(TINY).items()]
    command = [
        sys.executable,
        str(BENCHMARKS / "step.py"),
        "--one-host",
        "--rounds=1",
        "--neighbours=0",
    ]
    command += ["--only=torch fsdp2,torch hsdp,lins fsdp2,lins hsdp", "--micro-batches=2"]
    command += [f"--profiles={profiles}", f"--json={tmp_path / 'out.json'}"]
    done = subprocess.run(command + sizes, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads((tmp_path / "out.json").read_text())
    names = {"torch fsdp2", "torch hsdp", "lins fsdp2", "lins hsdp", "lins solved"}
    assert set(run["ranks"][0]["losses"]) == names | {"alone"}
    assert all(len(run["ranks"][0]["losses"][n]) == 6 for n in names)
    assert "torch hsdp / lins hsdp" in done.stdout
