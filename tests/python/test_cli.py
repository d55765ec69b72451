"""The command `lins`: tables, JSON, errors, and planning without torch."""

import json
import subprocess
import sys

import lins
import pytest
from click.testing import CliRunner
from lins.cli import main

MESH = ["--mesh", "node=2,gpu=4"]


def run(*args, code=0):
    result = CliRunner().invoke(main, list(args))
    assert result.exit_code == code, result.output
    return result


def run_json(*args):
    return json.loads(run(*args, "--json").stdout)


@pytest.mark.parametrize("command", ["demo", "inspect", "redistribute", "legal-plans", "doctor"])
def test_every_command_has_help_and_json(command):
    assert command in run("--help").stdout
    text = run(command, "--help").stdout
    assert "--json" in text


def test_version():
    assert lins.__version__ in run("--version").stdout


@pytest.mark.parametrize(
    "notation", ["S0(gpu,node)", "S1(node)", "F(gpu)", "O(gpu; 2)", "+sum(gpu)", "R"]
)
def test_inspect_says_what_the_layout_says(notation):
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    layout = lins.Layout(notation, shape=(10, 4), mesh=mesh)
    out = run_json("inspect", notation, "--shape", "10,4", *MESH)
    assert out["layout"] == str(layout)
    assert out["mesh"] == {"node": 2, "gpu": 4}
    for rank, r in enumerate(out["ranks"]):
        assert r["rank"] == rank
        assert tuple(r["coordinate"]) == mesh.coordinate(rank)
        assert [tuple(x) for x in r["ranges"]] == layout.ranges(rank)
        assert tuple(r["local_shape"]) == layout.local_shape(rank)
    table = run("inspect", notation, "--shape", "10,4", *MESH).stdout
    assert str(layout) in table
    assert "node" in table
    assert "gpu" in table


def test_inspect_table_shows_ranges_and_empty_shards():
    table = run("inspect", "S0(gpu,node)", "--shape", "5,4", *MESH).stdout
    assert "0:1" in table
    assert "[0, 4]" in table


def test_inspect_of_a_scalar():
    out = run_json("inspect", "R", "--shape", "", *MESH)
    assert out["shape"] == []
    assert all(r["ranges"] == [] for r in out["ranks"])
    run("inspect", "R", "--shape", "", *MESH)


def test_redistribute_prints_the_plan():
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    a, b = (lins.Layout(x, shape=(16, 4), mesh=mesh) for x in ("S0(gpu,node)", "S0(gpu)"))
    plan = lins.plan_redistribution(a, b, itemsize=2)
    args = ["redistribute", str(a), str(b), "--shape", "16,4", *MESH, "--itemsize", "2"]
    out = run_json(*args)
    assert [(s["kind"], s["axes"]) for s in out["steps"]] == [(s.kind, s.axes) for s in plan.steps]
    assert out["recv_bytes"] == plan.recv_bytes
    assert out["lower_bound_bytes"] == plan.lower_bound_bytes
    assert run(*args).stdout == f"{plan}\n"


def test_redistribute_to_itself_does_nothing():
    args = ["redistribute", "S0(gpu)", "S0(gpu)", "--shape", "16", *MESH]
    assert run_json(*args)["steps"] == []
    assert "nothing to do" in run(*args).stdout


@pytest.mark.parametrize("space", ["nested", "paper"])
def test_legal_plans_are_the_library_s(space):
    args = ["legal-plans", "--gpus", "8", "--nodes", "2", "--space", space]
    plans = [tuple(tuple(p[k]) for k in ("param", "grad", "optim")) for p in run_json(*args)]
    assert plans == lins.legal_plans(8, 2, space=space)
    assert "P=8x2 G=8x2 OS=8x2" in run(*args).stdout


def test_doctor_names_versions_and_environment(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "10.1.2.3")
    out = run_json("doctor")
    assert out["lins"] == lins.__version__
    assert out["cores"] >= 1
    assert out["environment"]["MASTER_ADDR"] == "10.1.2.3"
    assert {"torch", "gloo", "GPUs", "NCCL in lins"} <= set(out)
    assert "10.1.2.3" in run("doctor").stdout


@pytest.mark.parametrize(
    "args",
    [
        ["inspect", "S7(gpu)", "--shape", "10,4", *MESH],
        ["inspect", "S0(rack)", "--shape", "10,4", *MESH],
        ["inspect", "R", "--shape", "4", "--mesh", "node=0"],
        ["redistribute", "R", "+product(gpu)", "--shape", "4", *MESH],
        ["demo", "--policy", "P=3 G=3 OS=3"],
    ],
)
def test_mistakes_are_one_message_and_code_2(args):
    result = run(*args, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_malformed_options_say_what_is_legal():
    assert "node=2,gpu=4" in run("inspect", "R", "--shape", "4", "--mesh", "2x4", code=2).stderr
    assert "10,4" in run("inspect", "R", "--shape", "4x4", *MESH, code=2).stderr


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["inspect", "S0(gpu)", "--shape", "10,4", *MESH], 0),
        (["redistribute", "S0(gpu)", "R", "--shape", "10,4", *MESH], 0),
        (["legal-plans", "--gpus", "4"], 0),
        (["doctor"], 0),
        (["demo"], 2),
    ],
)
def test_planning_works_without_torch(args, code):
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from lins.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert not any(m.startswith('torch.') for m in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
