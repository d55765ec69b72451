"""Profiles from Python: loading, times, errors, and plans that are priced by one."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import lins
import pytest

MIB = 2**20


@pytest.fixture(scope="module")
def a800():
    return lins.Profile.load("a800")


def table(**changes):
    """The published table's form, with one point per operation and group."""
    ops = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all2all")
    points = {"1024": 1e-5, "2048": 2e-5}
    doc = {"source": "here", "gpus_per_node": 4, "latency_s": {op: {"4": points} for op in ops}}
    return doc | changes


def test_the_shipped_profile(a800):
    assert (a800.name, a800.gpus_per_node, a800.nodes) == ("a800", 8, 16)
    assert "A800" in a800.source and a800.environment == {}
    assert len(a800.curves) == 35
    curve = next(c for c in a800.curves if (c.op, c.gpus, c.nodes) == ("all_gather", 8, 2))
    assert [p.bytes for p in curve.points[:2]] == [MIB // 2, MIB]
    assert curve.points[1].median == 9.269e-05 and curve.points[1].samples == 10
    assert a800.compute == {"flops_per_second": 0, "overlap_slowdown": 1, "units": {}}
    assert lins.Profile.shipped_names() == ["a800"]
    assert repr(a800).startswith("Profile('a800', 8 GPUs per node x 16 nodes, 35 curves, source '")


def test_times(a800):
    assert a800.time("all_gather", MIB, gpus=8, nodes=2) == 9.269e-05
    assert a800.time("all_gather", MIB, gpus=8) == 3.964e-05
    assert a800.time("all_gather", 3 * MIB, gpus=8) == pytest.approx(
        3.964e-05 + (6.283e-05 - 3.964e-05) * 2 / 3
    )
    assert a800.time("all_to_all", 0, gpus=8, nodes=2) == 0
    measured = a800.estimate("all_gather", MIB, gpus=8, nodes=2)
    assert (measured.seconds, measured.extrapolated, measured.why) == (9.269e-05, False, "")
    derived = a800.estimate("all_gather", MIB, gpus=4, nodes=2)
    assert derived.extrapolated and "4x2 was not measured: taken from 8x2" in derived.why
    assert derived.seconds == a800.time("all_gather", 2 * MIB, gpus=8, nodes=2)


def test_the_three_known_spikes_do_not_decide(a800):
    spikes = {(s["op"], s["gpus"] * s["nodes"], s["bytes"]): s for s in a800.spikes}
    known = [
        ("reduce_scatter", 4, MIB),
        ("broadcast", 2, MIB // 2),
        ("all_gather", 16, MIB // 2),
    ]
    for key in known:
        s = spikes[key]
        assert a800.time(key[0], key[2], gpus=s["gpus"], nodes=s["nodes"]) == s["used"]
        assert s["used"] < s["seconds"] / 3


def test_regime_changes_are_between_neighbouring_sizes(a800):
    sizes = [p.bytes for p in a800.curves[0].points]
    for change in a800.regime_changes:
        assert sizes.index(change["above"]) - sizes.index(change["below"]) == 1


@pytest.mark.parametrize(
    "op, nbytes, mesh, why",
    [
        ("slice", 1, dict(gpus=8), "unknown operation 'slice': profiles time all_gather"),
        ("all_gather", -1, dict(gpus=8), "bytes is -1"),
        ("all_gather", 1, dict(gpus=16), "mesh 16x1 on profile 'a800': legal are 1 to 8 GPUs"),
        ("all_gather", 1, dict(gpus=8, nodes=0), "mesh 8x0"),
    ],
)
def test_what_cannot_be_asked(a800, op, nbytes, mesh, why):
    with pytest.raises(lins.LinsError, match=why):
        a800.time(op, nbytes, **mesh)


def test_files(a800, tmp_path):
    path = tmp_path / "cluster.json"
    a800.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["cluster.json"]
    for where in (path, str(path)):
        assert lins.Profile.load(where).to_json() == a800.to_json()
    path.write_text(json.dumps(table()))
    profile = lins.Profile.load(path)
    assert profile.time("all_to_all", 1536, gpus=4) == pytest.approx(1.5e-5)
    assert profile.source == "here"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(lins.LinsError, match=r"profile '.*cluster.json': no valid JSON: .*line 1"):
        lins.Profile.load(path)
    with pytest.raises(lins.LinsError, match=r"neither a file .* nor a shipped name \(a800\)"):
        lins.Profile.load("h100")
    with pytest.raises(lins.LinsError, match="profile 7: legal are"):
        lins.Profile.load(7)


def test_bad_tables_are_refused():
    no_broadcast = table()
    del no_broadcast["latency_s"]["broadcast"]
    beyond = table(gpus_per_node=3)
    for doc, why in [(no_broadcast, "no times of broadcast"), (beyond, "no whole nodes of 3")]:
        with pytest.raises(lins.LinsError, match=why):
            lins.Profile.from_json(json.dumps(doc))


def test_copies(a800):
    assert pickle.loads(pickle.dumps(a800)).to_json() == a800.to_json()


def test_a_model_is_labelled_and_follows_its_links():
    p = lins.Profile.model(
        gpus_per_node=4, nodes=2, intra_bandwidth=1e9, inter_bandwidth=1e8,
        intra_latency=1e-6, inter_latency=1e-5,
    )  # fmt: skip
    assert p.source == "model" and p.environment["inter_bandwidth"] == "1e+08"
    assert p.time("all_reduce", 8000, gpus=4) == pytest.approx(2 * (3e-6 + 6000 / 1e9))
    assert p.time("all_gather", 8000, gpus=4, nodes=2) == pytest.approx(1.3e-5 + 4000 / 1e8)
    with pytest.raises(lins.LinsError, match="inter_latency is -1"):
        lins.Profile.model(nodes=2, inter_latency=-1)


def test_a_copy_with_other_compute(a800):
    units = {"layers": {"forward": 0.1, "backward": 0.2}}
    p = a800.with_compute(flops_per_second=1e14, units=units)
    assert p.compute == {"flops_per_second": 1e14, "overlap_slowdown": 1, "units": units}
    assert p.with_compute(overlap_slowdown=1.5).compute["units"] == units
    assert lins.Profile.from_json(p.to_json()).compute == p.compute
    with pytest.raises(lins.LinsError, match="overlap_slowdown is"):
        a800.with_compute(overlap_slowdown=0.5)
    with pytest.raises(lins.LinsError, match="unit 'x' needs seconds of 'forward'"):
        a800.with_compute(units={"x": {"forward": 1}})


MESH = lins.Mesh((2, 8), ("node", "gpu"))


def plan(profile, mesh=MESH, dst="R"):
    src = lins.Layout("S0(gpu)", shape=(MIB,), mesh=mesh)
    return lins.plan_redistribution(
        src, lins.Layout(dst, shape=(MIB,), mesh=mesh), itemsize=4, profile=profile
    )


def test_plans_take_a_profile_a_name_or_a_path(a800, tmp_path):
    path = tmp_path / "p.json"
    a800.save(path)
    expected = a800.time("all_gather", 4 * MIB, gpus=8)
    for profile in (a800, "a800", path, str(path)):
        p = plan(profile)
        assert [s.kind for s in p.steps] == ["all_gather"]
        assert p.seconds == p.steps[0].seconds == expected
    with pytest.raises(lins.LinsError, match="neither a file"):
        plan("a801")
    with pytest.raises(lins.LinsError, match="profile 3: legal are"):
        plan(3)


def test_a_mesh_that_the_profile_cannot_price_is_an_error():
    mesh = lins.Mesh((2, 16), ("node", "gpu"))
    with pytest.raises(lins.LinsError, match="mesh 16x1 on profile 'a800': legal are 1 to 8 GPUs"):
        plan("a800", mesh)
    one_node = lins.Profile.from_json(json.dumps(table()))
    with pytest.raises(lins.LinsError, match=r"measured on 4x1 .* says nothing of 1x2"):
        plan(one_node, lins.Mesh((2, 4), ("node", "gpu")))


def test_works_without_torch(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import lins; p = lins.Profile.load('a800')\n"
        "print(p.time('all_gather', 2**20, gpus=8, nodes=2))"
    )
    package = Path(lins.__file__).parents[1]
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": package}
    )
    assert out.stdout.strip() == "9.269e-05", out.stderr
