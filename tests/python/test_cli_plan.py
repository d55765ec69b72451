"""The planning commands: tables, JSON, exit codes, and all of them without torch."""

import json
import subprocess
import sys
from pathlib import Path

import lins
import pytest
from plan_commands import PROBLEM, run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    run("plan", *PROBLEM, "-o", path)
    return path


def test_plan_saves_what_it_shows(saved):
    plan = lins.Plan.load(saved)
    assert plan.to_json() == saved.read_text()
    assert run("plan", *PROBLEM, "--json").stdout == saved.read_text()
    table = run("plan", *PROBLEM).stdout
    for fact in ("llama-7B", "T_os0", "Alternatives", "slack", plan.reason[:20]):
        assert fact in table


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (["--cap", "40G"], ("settings", "cap_bytes"), 40 * 2**30),
        (["--cap", "40e9"], ("settings", "cap_bytes"), 40_000_000_000),
        (["--memory", "64GiB"], ("cluster", "memory_bytes"), 64 * 2**30),
        (["--quota", "50G"], ("cluster", "quota_bytes"), 50 * 2**30),
        (["--gpus", "8"], ("cluster", "gpus_per_node"), 8),
        (["--seq-len", "2048"], ("model", "seq_len"), 2048),
        (["--micro-batch", "2"], ("model", "micro_batch"), 2),
        (["--recompute", "full"], ("model", "recompute"), "full"),
        (["--global-tokens", "131072"], ("settings", "micro_batches"), 2),
        (["--objective", "comm"], ("settings", "objective"), "comm"),
        (["--space", "paper"], ("settings", "space"), "paper"),
        (["--family", "paper"], ("settings", "family"), "paper"),
        (["--per-unit"], ("settings", "uniform"), 0),
        (["--per-unit", "--split-repeats"], ("settings", "split_repeats"), 1),
        (["--tie-epsilon", "0"], ("settings", "tie_epsilon"), 0),
        (["--tensor-parallel", "2"], ("cluster", "tensor_parallel"), 2),
        (["--pipeline-parallel", "2"], ("cluster", "pipeline_parallel"), 2),
        (["--prefetch", "2"], ("settings", "overlap"), None),
        (["--scale", "4x8"], ("settings", "scales"), None),
        (["--hidden", "512", "--layers", "4", "--ffn", "1024"], ("model", "logits_bytes"), None),
    ],
)
def test_options_reach_the_problem(options, key, value):
    inputs = json.loads(run("plan", *PROBLEM, *options, "--json").stdout)["inputs"]
    got = inputs[key[0]][key[1]]
    assert value is None or got == value
    if options[0] == "--scale":
        assert got == [{"micro_batches": 8, "nodes": 4, "weight": 1.0}]
    if options[0] == "--prefetch":
        assert got["prefetch"] == 2
        assert inputs["settings"]["memory"]["gathered_units"] == 3


def test_explain(saved):
    plan = lins.Plan.load(saved)
    assert json.loads(run("explain", saved, "--json").stdout) == plan.explain().to_dict()
    assert "Memory per GPU" in run("explain", saved).stdout
    unit = run("explain", saved, "--unit", "head", "--json").stdout
    assert json.loads(unit) == plan.why("head").to_dict()
    assert "chosen" in run("explain", saved, "--unit", "head").stdout
    assert "legal are" in run("explain", saved, "--unit", "tail", code=2).output


def test_what_if_and_diff(saved, tmp_path):
    out = tmp_path / "tight.json"
    args = ["what-if", saved, "--cap", "40G", "--policy", "zero3", "-o", out]
    shown = json.loads(run(*args, "--json").stdout)
    plan, changed = lins.Plan.load(saved), lins.Plan.load(out)
    assert changed.cap_bytes == 40 * 2**30
    assert changed.factors["param"] == (8, 2)
    assert shown == lins.diff(plan, changed).to_dict()
    assert json.loads(run("diff", saved, out, "--json").stdout) == shown
    assert "Placement" in run("diff", saved, out).stdout
    for change in (
        ["--nodes", 4],
        ["-m", 1],
        ["--micro-batch", 2],
        ["--recompute", "full"],
        ["--objective", "comm"],
        ["--space", "full"],
        ["--profile", "a800"],
    ):
        assert "Cost of a step" in run("what-if", saved, *change).stdout


def test_frontier(saved):
    for extra in ([], ["--per-unit", "--points", "3"]):
        table = json.loads(run("frontier", *PROBLEM, *extra, "--json").stdout)["tables"][0]
        assert "speed-up" in table["columns"]
        assert len(table["rows"]) >= 2
    assert "memory taken" in run("frontier", *PROBLEM).stdout


def test_simulate(saved, tmp_path):
    trace = tmp_path / "trace.json"
    facts = json.loads(run("simulate", saved, "--trace", trace, "--json").stdout)
    assert facts["step"] == pytest.approx(facts["compute"] + facts["exposed"])
    assert json.loads(trace.read_text())["traceEvents"]
    assert "predicted_step" in run("simulate", saved).stdout


def test_table3():
    report = json.loads(run("table3", "--json").stdout)
    rows = report["tables"][0]["rows"]
    assert [r[3] == r[4] for r in rows] == [True] * 3
    assert "Neighbours" in run("table3").stdout


@pytest.mark.parametrize(
    "args",
    [
        ["plan", "--model", "8B"],
        ["plan", "--hidden", "12"],
        ["plan", "--nodes", "0"],
        ["plan", "--cap", "10M"],
        ["plan", "--cap", "-4"],
        ["plan", "--cap", "much"],
        ["plan", "--cap", "nan"],
        ["plan", "--scale", "4"],
        ["plan", "--scale", "4x-1"],
        ["plan", "--global-tokens", "5"],
        ["plan", "--profile", "nowhere"],
        ["plan", "--tensor-parallel", "3"],
        ["plan", "--objective", "fast"],
        ["plan", "--family", "paper", "--space", "full"],
        ["plan", "--per-unit", "--scale", "4x1"],
        ["plan", "-o", "no/such/folder/plan.json"],
        ["explain", "missing.json"],
        ["explain"],
        ["what-if", "missing.json"],
        ["diff", "missing.json", "missing.json"],
        ["simulate", "missing.json"],
        ["frontier", "--points", "1"],
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(args):
    result = run(*args, code=2)
    assert result.output.strip()
    assert "Traceback" not in result.output


def test_an_infeasible_plan_says_what_would_do():
    out = run("plan", "--model", "30B", code=2).output
    assert "the least needs" in out
    assert "nodes=" in out


def test_files_that_are_no_plans(tmp_path, saved):
    damaged = tmp_path / "plan.json"
    damaged.write_text(saved.read_text().replace('"nodes": 2', '"nodes": 4'))
    assert "was changed after it was saved" in run("explain", damaged, code=2).output.replace(
        "\n", " "
    )
    damaged.write_bytes(b"\xff\xfe\x00")
    run("explain", damaged, code=2)
    run("simulate", saved, "--trace", tmp_path / "no" / "trace.json", code=2)


NO_TORCH = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "lins._core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import importlib.util
_find = importlib.util.find_spec
def find_spec(name, package=None):
    return None if name.split(".")[0] == "torch" else _find(name, package)
importlib.util.find_spec = find_spec
sys.meta_path.insert(0, Hidden())
"""

ALL_COMMANDS = (
    NO_TORCH
    + """
import json, pathlib
from click.testing import CliRunner
import lins
from lins.cli import main

folder = pathlib.Path(sys.argv[1])
plan, other = folder / "plan.json", folder / "other.json"
problem = ["--model", "7B", "--nodes", "2"]
commands = [
    ["plan", *problem, "-o", plan],
    ["explain", plan],
    ["explain", plan, "--unit", "layers"],
    ["what-if", plan, "--cap", "60G", "-o", other],
    ["diff", plan, other],
    ["frontier", *problem],
    ["simulate", plan],
    ["table3"],
]
for command in commands:
    for extra in ([], ["--json"]):
        result = CliRunner().invoke(main, [str(x) for x in [*command, *extra]])
        assert result.exit_code == 0, (command, result.output, result.exception)
        if extra:
            json.loads(result.stdout)
spec = lins.ModelSpec.llama("7B")
cluster = lins.Cluster(nodes=2, gpus_per_node=8)
lins.solve(spec, cluster, uniform=False).explain()
lins.frontier(spec, cluster)
try:
    lins.solve(spec, cluster, cap_bytes=1)
except lins.Infeasible as e:
    assert e.least_bytes > 1
else:
    raise AssertionError
assert not hasattr(lins, "lins_shard")
assert "torch" not in sys.modules
print("all ran")
"""
)


def test_everything_works_without_torch(tmp_path):
    package = str(Path(lins.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", ALL_COMMANDS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={"PYTHONPATH": package, "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "all ran"


def test_plan_keeps_plans_in_a_folder(tmp_path, saved):
    for _ in range(2):
        assert run("plan", *PROBLEM, "--cache", tmp_path, "--json").stdout == saved.read_text()
    assert len(list(tmp_path.iterdir())) == 1
