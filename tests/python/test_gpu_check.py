"""The checks of `make gpu-check` that run, and can fail, without a GPU."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_check
import gpu_overlap


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(gpu_check, "_DEVICE", "cpu")
    monkeypatch.setattr(gpu_check, "_PLANS", ["zero3", "P=2x1 G=2x2 OS=2x2"])


def test_plans_train_as_one_process(on_cpu):
    rows = gpu_check.plans()
    assert len(rows) == 8
    assert all(row["ok"] for row in rows)


def test_a_plan_that_trains_otherwise_fails(on_cpu, monkeypatch):
    train = gpu_check._train

    def wrong(*args):
        values = train(*args)
        values["head.bias"] += 1
        return values

    monkeypatch.setattr(gpu_check, "_train", wrong)
    assert not any(row["ok"] for row in gpu_check.plans())


def test_the_program_of_kernels_must_run_tests_on_a_device(tmp_path):
    def program(text, code=0):
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        path.chmod(0o755)
        return gpu_check.kernels(str(path))

    ran = "[       OK ] OnDevice.Adam (3 ms)"
    assert program(ran) == [{"what": "OnDevice.Adam", "ok": True}]
    failed = "[  FAILED  ] OnDevice.Adam (3 ms)\n[  FAILED  ] OnDevice.Adam"
    assert program(failed, 1) == [{"what": "OnDevice.Adam", "ok": False}]
    assert [row["ok"] for row in program(ran, 3)] == [True, False]  # it crashed later
    assert [row["ok"] for row in program("[  SKIPPED ] OnDevice.Adam (0 ms)")] == [False]
    assert gpu_check.kernels(None)[0]["ok"] is False


def test_overlap_counts_each_moment_once():
    assert gpu_overlap.covered([(0, 10)], [(2, 4), (3, 6), (20, 30)]) == 0.4
    assert gpu_overlap.covered([(0, 2), (1, 4), (6, 8)], [(3, 7)]) == 2 / 6
    assert gpu_overlap.covered([(0, 2)], []) == 0
    assert gpu_overlap.covered([], [(0, 2)]) == 0
    spans = [("ncclDevKernel", (0.0, 4.0)), ("gemm", (1.0, 2.0)), ("memcpy", (3.0, 5.0))]
    assert gpu_overlap.hidden(spans, "nccl") == 0.5


def test_rows_become_a_table(capsys):
    gpu_check.show(
        [
            {"check": "bandwidth", "what": "AdamW", "value": 93.2, "unit": "%", "goal": 90},
            {"check": "bandwidth", "what": "Lion", "value": 12.0, "unit": "%", "goal": 90},
            {"check": "plans", "what": "zero3", "ok": False},
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert "met" in next(line for line in lines if "AdamW" in line)
    assert "missed" in next(line for line in lines if "Lion" in line)
    assert "FAILED" in next(line for line in lines if "zero3" in line)


def test_it_says_that_there_is_no_device(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        gpu_check.main()
