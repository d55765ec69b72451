"""1,000 steps hold what 200 hold (case 35): an interpreter of its own counts its memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lins
import models
import pytest
from models import AXES, Stack

WORKER = Path(__file__).with_name("steady_state_worker.py")


POLICIES = ["P=1 G=2 OS=2/paper", "P=2 G=2 OS=2/planned"]


@pytest.fixture(scope="module")
def held():
    """{policy: {steps: what the process holds}}"""
    done = subprocess.run(
        [sys.executable, WORKER, *POLICIES],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"} | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)
    return {p: {s["step"]: s for s in run} for p, run in zip(POLICIES, runs, strict=True)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_thousand_steps_keep_memory_caches_and_step_time_flat(policy, held):
    seen = held[policy]
    assert list(seen) == [100, 200, 400, 600, 800, 1000]
    early, late = seen[400], seen[1000]

    def grown(what):
        return late[what] - early[what]

    # 600 steps lie between: anything kept of every step would exceed these.
    assert grown("objects") < 60, seen
    assert grown("blocks") < 500, seen  # of Python's allocator; the smallest object is one
    assert grown("heap") < 600 * 100, seen  # a tensor's own bookkeeping is more than 100 bytes
    assert grown("resident") < 2**20, seen
    assert late["held"] == early["held"] == seen[200]["held"]
    assert late["held"]["live_leases"] == late["held"]["buffers"] == 0
    assert late["cpu"] < 1.5 * early["cpu"], seen


def test_a_hundred_steps_keep_memory_flat():
    def check(mesh):
        model = lins.lins_shard(Stack(depth=2), mesh, "P=2x1 G=2x1 OS=4")
        opt = lins.AdamW(model)
        seen = []
        for step in range(100):
            models.backward(model, step % 5, mesh.rank, 2)
            lins.clip_grad_norm_(model, 1.0)
            opt.step()
            opt.zero_grad()
            if step % 10 == 9:
                seen.append(lins.memory(model))
        return seen

    for seen in lins.testing.run((2, 2), AXES, check):
        flat = [
            {k: v for k, v in m.items() if not k.startswith("peak") and k != "pooled"} for m in seen
        ]
        assert all(m == flat[0] for m in flat)
        pooled = [m["pooled"] for m in seen]
        assert pooled[-1] <= 2 * pooled[1]
        assert all(m["live_leases"] == 0 for m in seen)
