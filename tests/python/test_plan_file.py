"""Plan files from Python: round trips, changed problems, paths."""

import json
import os
import random

import lins
import pytest


@pytest.fixture(scope="module")
def spec():
    return lins.ModelSpec.llama("7B", seq_len=4096, micro_batch=1)


@pytest.fixture(scope="module")
def cluster():
    return lins.Cluster(nodes=2, gpus_per_node=8, profile="a800")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"uniform": False},
        {"uniform": False, "split_repeats": True, "cap_bytes": 40 * 2**30},
        {"family": "paper", "space": "paper", "objective": "comm"},
        {"space": "full", "micro_batches": 3},
        {"scales": [(4, 2, 0.5)]},
    ],
)
def test_round_trip(tmp_path, spec, cluster, settings):
    plan = lins.solve(spec, cluster, **settings)
    path = tmp_path / "plan.json"
    plan.save(path)
    again = lins.Plan.load(path, spec, cluster)
    assert again.to_json() == plan.to_json() == path.read_text()
    for part in ("cost", "memory", "policies", "reason", "alternatives", "factors", "recv_bytes"):
        assert getattr(again, part) == getattr(plan, part)
    again.explain()
    assert again.what_if().to_json() == plan.to_json()


def test_the_schema(spec, cluster):
    text = json.loads(lins.solve(spec, cluster).to_json())
    assert set(text) == {
        "format",
        "version",
        "inputs",
        "fingerprint",
        "mesh",
        "units",
        "cost",
        "memory",
        "cap_bytes",
        "slack_bytes",
        "reason",
        "alternatives",
        "digest",
    }
    assert set(text["inputs"]) == {"model", "cluster", "settings"}
    unit = text["units"][0]
    assert set(unit["meshes"]) == {"param", "grad", "optim"}
    assert set(unit["layouts"]) == {"param", "grad", "optim", "between"}


def test_changed_problems_are_refused_and_named(tmp_path, spec, cluster):
    path = tmp_path / "plan.json"
    lins.solve(spec, cluster).save(path)
    with pytest.raises(lins.LinsError, match=r"model\.seq_len is 2048 and was 4096"):
        lins.Plan.load(path, lins.ModelSpec.llama("7B", seq_len=2048))
    with pytest.raises(lins.LinsError, match=r"cluster\.nodes is 4 and was 2"):
        lins.Plan.load(path, cluster=lins.Cluster(nodes=4, gpus_per_node=8))
    other = lins.Cluster(nodes=2, gpus_per_node=8, profile=lins.Profile.model(nodes=2))
    with pytest.raises(lins.LinsError, match=r"cluster\.profile"):
        lins.Plan.load(path, cluster=other)


def test_saving_is_all_or_nothing(tmp_path, spec, cluster):
    plan = lins.solve(spec, cluster)
    path = tmp_path / "plan.json"
    plan.save(path)
    before = path.read_bytes()
    with pytest.raises(lins.LinsError, match="cannot write"):
        plan.save(tmp_path / "missing" / "plan.json")
    with pytest.raises(lins.LinsError, match="cannot write"):
        plan.save(tmp_path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["plan.json"]
    with pytest.raises(TypeError):
        plan.save(3)


def test_damage_is_an_error(tmp_path, spec, cluster):
    plan = lins.solve(spec, cluster)
    path = tmp_path / "plan.json"
    plan.save(path)
    good = path.read_bytes()
    rng = random.Random(0)
    for _ in range(60):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        try:
            again = lins.Plan.load(path)
        except lins.LinsError as e:
            assert "plan.json" in str(e)
        else:
            assert again.to_json() == plan.to_json()
    for end in [*range(0, len(good) - 1, len(good) // 50), len(good) - 2]:
        path.write_bytes(good[:end])
        with pytest.raises(lins.LinsError):
            lins.Plan.load(path)
