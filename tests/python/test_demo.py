"""The demonstration as a user runs it: processes, numbers, interruption, a rank that dies."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lins.demo.settings import POLICIES, TOLERANCE, Settings

RANKS = 4
COMMAND = [sys.executable, "-m", "lins", "demo"]
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def environment():
    return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}


@pytest.fixture(scope="module")
def report():
    done = subprocess.run(
        [*COMMAND, "--short", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_policy_is_there(report):
    assert [p["policy"] for p in report["policies"]] == list(POLICIES)
    assert report["mesh"] == {"node": 2, "gpu": 2}


def test_losses_agree_with_the_single_process(report):
    steps = Settings.short().steps
    reference = report["single"]["losses"]
    assert len(reference) == steps
    assert reference[-1] < reference[0]
    for p in report["policies"]:
        assert p["losses"] == pytest.approx(reference, rel=TOLERANCE)
        assert p["norms"] == pytest.approx(report["single"]["norms"], rel=TOLERANCE)
        assert p["largest_difference"] <= report["largest_difference"]
    assert report["agree"]


def test_bytes_held_are_the_formula(report):
    import torch
    from lins.demo.model import build

    with torch.random.fork_rng():
        n = sum(p.numel() for p in build(Settings.short()).parameters())
    for p in report["policies"]:
        for state, size in (("param", 4), ("grad", 4), ("optim", 8)):
            pieces = p["factors"][state][0] * p["factors"][state][1]
            item = p["memory"][state]
            assert item["formula"] == size * n // pieces
            assert item["measured"] == item["plan"] == item["formula"] + item["padding"]
            assert 0 <= item["padding"] <= 0.01 * item["formula"]


def test_bytes_received_are_the_plan(report):
    for p in report["policies"]:
        for role, item in p["received"].items():
            assert item["measured"] == item["plan"], (p["policy"], role)
        assert p["received"]["total"]["plan"] > 0
    assert report["bytes_as_planned"]


def test_plans_are_in_the_notation(report):
    layouts = {p["policy"]: p["layouts"] for p in report["policies"]}
    assert layouts["ddp"] == {"param": "R", "grad": "+sum(node,gpu)", "optim": "R"}
    assert layouts["P=2 G=2 OS=4"] == {
        "param": "S0(gpu)",
        "grad": "S0(gpu) +sum(node)",
        "optim": "S0(gpu,node)",
    }
    moments = {p["policy"]: p["moments"] for p in report["policies"]}
    assert moments["ddp"]["gather"]["steps"] == []
    assert moments["zero3"]["gather"]["steps"] == ["all_gather(gpu,node)"]


def test_tables_show_every_policy_and_the_verdict(report, capsys):
    from lins.demo.report import show
    from rich.console import Console

    show(report, Console(width=120))
    text = capsys.readouterr().out
    assert all(p in text for p in POLICIES)
    assert "All losses agree with the single process" in text
    assert "one process" in text


@pytest.mark.parametrize("what", ["losses", "norms"])
@pytest.mark.parametrize("value", [1.01, float("nan")])
def test_disagreement_is_found(report, what, value):
    from lins.demo.summary import summarize

    settings = Settings.short(policies=("ddp",), steps=2)
    plan = {k: {} for k in ("factors", "layouts", "moments")}
    plan |= {k: dict.fromkeys(("param", "grad", "optim"), 1) for k in ("formula", "held")}
    plan["received"] = dict.fromkeys(("gather", "reduce", "update"), 1)
    rank = {"losses": [1.0, 1.0], "norms": [1.0, 1.0], "seconds": [0.1, 0.1], "plan": plan}
    rank |= {"memory": {**plan["held"], "peak_buffers": 0}, "received": plan["received"]}
    wrong = {**rank, what: [1.0, value]}
    mesh = {"node": 1, "gpu": 2}
    assert summarize(settings, mesh, rank, [{"ddp": rank}, {"ddp": rank}])["agree"]
    assert not summarize(settings, mesh, rank, [{"ddp": rank}, {"ddp": wrong}])["agree"]


def session(leader):
    """{pid: command line} of the processes in the session that `leader` leads, itself left out."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *rest = re.sub(r"^.*\) ", "", stat.read_text()).split()
            if int(rest[2]) == leader and state != "Z" and int(stat.parent.name) != leader:
                found[int(stat.parent.name)] = (stat.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def running():
    """A demo that would run for long, its ranks at work."""
    demo = subprocess.Popen(
        [*COMMAND, "--short", "--steps", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )

    def ranks():
        assert demo.poll() is None, demo.communicate()
        return [p for p, line in session(demo.pid).items() if "lins.demo.rank" in line]

    try:
        wait_until(lambda: len(ranks()) == RANKS, 60, "ranks start")
        # The first lines of progress: they are past their start-up.
        assert "step 10 of" in demo.stderr.readline()
        yield demo, ranks()
    finally:
        for pid in [demo.pid, *session(demo.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        demo.communicate()


@linux
def test_sigterm_to_the_launcher_leaves_no_process(running):
    demo, _ = running
    demo.terminate()
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in errors
    assert not session(demo.pid)


@linux
def test_ctrl_c_in_a_terminal_reaches_all_and_leaves_none(running):
    demo, _ = running
    os.killpg(demo.pid, signal.SIGINT)
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 128 + signal.SIGINT
    assert "Traceback" not in errors
    assert not session(demo.pid)


@linux
def test_ranks_end_with_a_launcher_that_is_killed(running):
    demo, _ = running
    demo.kill()
    demo.wait()
    wait_until(lambda: not session(demo.pid), 30, "ranks notice")


@linux
def test_a_rank_that_dies_ends_the_demo_with_an_error(running):
    demo, ranks = running
    os.kill(ranks[-1], signal.SIGKILL)
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 2
    assert re.search(r"error: rank \d was ended by SIGKILL", errors)
    assert not session(demo.pid)
