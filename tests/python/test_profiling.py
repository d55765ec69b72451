"""`lins profile` as a user runs it: ranks of this machine, ends and resumptions, pictures."""

import json
import os
import signal
import subprocess
import sys
import time

import lins
import pytest
from click.testing import CliRunner
from lins.cli import main
from lins.cli_profile import _largest_message
from lins.profiling.partial import Partial

OPS = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"}
COMMAND = [sys.executable, "-m", "lins", "profile"]
SMALL = ["--quick", "--max-bytes", "16KiB", "--budget", "3"]


def environment():
    return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}


def run(*args, code=0, command=COMMAND):
    done = subprocess.run(
        [*command, *map(str, args)], capture_output=True, text=True, timeout=120, env=environment()
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run_json(*args, **options):
    return json.loads(run(*args, "--json", **options).stdout)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "here.json"
    for _ in range(3):  # on a busy machine the time may be up before the last point
        report = run_json("--processes", 4, "--nodes", 2, "-o", path, *SMALL)
        if report["complete"]:
            break
    return path, report


def test_every_operation_on_every_mesh_at_every_size(measured):
    path, report = measured
    assert (report["points"], report["of"], report["complete"]) == (20, 20, True)
    assert [p.name for p in path.parent.iterdir()] == ["here.json"]
    profile = lins.Profile.load(path)
    assert (profile.name, profile.source) == ("here", "measured")
    assert (profile.gpus_per_node, profile.nodes) == (2, 2)
    assert {(c.op, c.gpus, c.nodes) for c in profile.curves} == {
        (op, 2, n) for op in OPS for n in (1, 2)
    }
    for c in profile.curves:
        assert [p.bytes for p in c.points] == [4096, 16384]
        for p in c.points:
            assert 1e-6 < p.median <= p.p95 < 10 and p.samples >= 1
    assert profile.compute["flops_per_second"] > 1e8
    assert profile.compute["overlap_slowdown"] >= 1
    assert profile.compute == report["compute"]
    described = profile.environment
    assert described["topology"] == "2 nodes x 2 ranks" and described["backend"] == "gloo"
    assert {"torch", "lins", "hosts", "cores", "devices", "dtype"} <= set(described)


def test_a_measured_profile_prices_plans(measured):
    mesh = lins.Mesh((2, 2), ("node", "gpu"))
    a, b = (lins.Layout(x, shape=(1024,), mesh=mesh) for x in ("S0(gpu,node)", "R"))
    plan = lins.plan_redistribution(a, b, itemsize=4, profile=measured[0])
    assert 0 < plan.seconds < 1


def test_without_quick_also_groups_between_placements(tmp_path):
    report = run_json(
        "--processes", 4, "--nodes", 2, "-o", tmp_path / "p.json", "--max-bytes", "4KiB",
        "--budget", 2, "--name", "cluster", "--dtype", "bf16",
    )  # fmt: skip
    profile = lins.Profile.load(report["output"])
    assert {(c.gpus, c.nodes) for c in profile.curves} == {(2, 1), (2, 2), (1, 2)}
    assert (profile.name, profile.environment["dtype"]) == ("cluster", "bf16")


def test_under_torchrun(tmp_path):
    path = tmp_path / "p.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
    done = run("-o", path, *SMALL, command=[*torchrun, "lins", "profile"])
    assert done.stdout.count("written to") == 1  # by one rank
    assert lins.Profile.load(path).gpus_per_node == 2
    done = run("-o", path, "--processes", 2, command=[*torchrun, "lins", "profile"], code=1)
    assert "--processes starts ranks, but torchrun has started them already" in done.stderr


def test_goes_on_after_an_interruption(tmp_path):
    path = tmp_path / "p.json"
    arguments = ["--processes", "2", "-o", str(path), "--max-bytes", "64KiB"]
    first = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(),
    )  # fmt: skip
    partial = tmp_path / "p.json.partial"
    deadline = time.monotonic() + 60
    while not partial.exists():
        assert time.monotonic() < deadline and first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=30)
    assert first.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT; run again to go on" in errors and "Traceback" not in errors
    assert not path.exists()
    kept = json.loads(partial.read_text())["points"]
    done = run(*arguments, "--budget", 8, "--json")
    assert f"going on from {len(kept)} points" in done.stderr
    profile = lins.Profile.load(path)
    for p in kept:
        (curve,) = (c for c in profile.curves if c.op == p["op"])
        assert p["point"]["median"] in [x.median for x in curve.points]
    assert partial.exists() != json.loads(done.stdout)["complete"]


def test_out_of_time(tmp_path):
    path = tmp_path / "p.json"
    done = run("--processes", 2, "-o", path, "--budget", 0, code=2)
    assert "the time was up after 0 points, before any of all_gather, reduce_scatter" in done.stderr
    assert not path.exists()
    report = run_json("--processes", 2, "-o", path, "--budget", 0.2, "--max-bytes", "1MiB")
    if not report["complete"]:  # what is there is a profile, and is gone on from
        assert lins.Profile.load(path).environment["complete"] == "no"
        assert (tmp_path / "p.json.partial").exists()


def partial(tmp_path, text):
    (tmp_path / "p.json.partial").write_text(text)
    p = Partial(tmp_path / "p.json", {"torch": "2", "backend": "gloo"})
    return p, p.load()


def test_another_environment_is_measured_anew(tmp_path):
    other = {"environment": {"torch": "1", "backend": "gloo", "x": "y"}, "points": []}
    p, said = partial(tmp_path, json.dumps(other))
    assert p.points == {} and "measured with other torch, x: measuring anew" in said


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"environment": {}, "points": [1]}'])
def test_a_damaged_record_is_measured_anew(tmp_path, text):
    p, said = partial(tmp_path, text)
    assert p.points == {} and "is no record of an earlier run" in said


@pytest.mark.parametrize(
    "arguments, why",
    [
        ([], "measured by all ranks of a job: start `lins profile` with torchrun, or give"),
        (["--processes", "3", "--nodes", "2"], "3 processes on 2 nodes: legal are"),
        (["--processes", "2", "-o", "/nowhere/p.json"], "there is no folder /nowhere"),
        (["--processes", "2", "--model", "7B", "--max-bytes", "1"], "--model says how large"),
        (["--processes", "2", "--max-bytes", "many"], "write bytes like 80G or 77.3e9"),
        (["--processes", "2", "--max-bytes", "1KiB"], "sizes from 4096 to 1024 bytes"),
    ],
)
def test_mistakes(arguments, why, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(main, ["profile", *arguments])
    assert result.exit_code == 2 and why in result.output


def test_up_to_the_largest_message_of_a_model():
    largest = max(2 * u.parameters for u in lins.ModelSpec.llama("7B").units)
    assert largest <= _largest_message("7B") < 2 * largest
    assert _largest_message("7B").bit_count() == 1


def test_a_picture_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(main, ["profile", "--processes", "2", "--plot", "x.png"])
    assert result.exit_code == 2 and "--plot needs matplotlib: pip install matplotlib" in (
        result.output
    )


def test_a_picture_of_every_curve(tmp_path):
    pytest.importorskip("matplotlib")
    from lins.profiling.plot import plot

    plot(lins.Profile.load("a800"), tmp_path / "a800.png")
    assert (tmp_path / "a800.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(lins.LinsError, match="cannot write the picture"):
        plot(lins.Profile.load("a800"), tmp_path / "none" / "a800.png")
