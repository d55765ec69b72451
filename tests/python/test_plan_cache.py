"""Plans that were solved for before are read from a folder, and never stand for another problem."""

import lins
import pytest
from lins import _planning

SPEC = lins.ModelSpec.llama("7B")
CLUSTER = lins.Cluster(nodes=2, gpus_per_node=8)


@pytest.fixture
def solved(monkeypatch):
    """Counts what is really solved for."""
    calls = []
    real = _planning.solve

    def count(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(_planning, "solve", count)
    return calls


def test_the_same_problem_is_solved_once(tmp_path, solved):
    folder = tmp_path / "plans" / "here"
    first = lins.solve(SPEC, CLUSTER, 4, cache=folder)
    again = lins.solve(SPEC, CLUSTER, 4, cache=str(folder))
    assert len(solved) == 1
    assert again.to_json() == first.to_json()
    assert [f.name.startswith("llama-7B-2x8-") for f in folder.iterdir()] == [True]


@pytest.mark.parametrize(
    "spec, cluster, settings",
    [
        (lins.ModelSpec.llama("7B", seq_len=2048), CLUSTER, {}),
        (SPEC, lins.Cluster(nodes=4, gpus_per_node=8), {}),
        (SPEC, lins.Cluster(nodes=2, gpus_per_node=8, quota_bytes=60 * 10**9), {}),
        (SPEC, lins.Cluster(2, 8, profile=lins.Profile.model(nodes=2)), {}),
        (SPEC, CLUSTER, {"cap_bytes": 60 * 10**9}),
        (SPEC, CLUSTER, {"objective": "comm"}),
        (SPEC, CLUSTER, {"margin": 0.1}),
    ],
    ids=["model", "nodes", "quota", "profile", "cap", "objective", "margin"],
)
def test_any_other_problem_is_solved_for(spec, cluster, settings, tmp_path, solved):
    lins.solve(SPEC, CLUSTER, cache=tmp_path)
    plan = lins.solve(spec, cluster, cache=tmp_path, **settings)
    assert len(solved) == 2 and len(list(tmp_path.iterdir())) == 2
    assert plan.to_json() == lins.solve(spec, cluster, **settings).to_json()


def test_a_damaged_file_is_made_again(tmp_path, solved):
    first = lins.solve(SPEC, CLUSTER, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    assert lins.solve(SPEC, CLUSTER, cache=tmp_path).to_json() == first.to_json()
    assert len(solved) == 2 and file.read_text() == whole


def test_what_does_not_fit_leaves_nothing_behind(tmp_path):
    with pytest.raises(lins.Infeasible):
        lins.solve(SPEC, CLUSTER, cap_bytes=10**9, cache=tmp_path / "plans")
    assert not (tmp_path / "plans").exists()
