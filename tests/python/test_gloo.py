"""Real processes over Gloo: the same values as threads, clean exits, and a rank that stays away."""

import multiprocessing
import os
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

import lins
import models
import pytest
import torch
from models import AXES, SIGN_DESCENT, Stack

# One process imports torch and forks the ranks, before it has threads of its own.
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["lins", "models", "torch._dynamo", "test_gloo"])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rank_environment(shape, rank, port):
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(shape[0] * shape[1]),
        "LOCAL_WORLD_SIZE": str(shape[1]),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % shape[1]),
    }


def play(fn, shape, rank, port, timeout, pipe):
    os.environ.update(rank_environment(shape, rank, port))
    torch.set_num_threads(1)
    try:
        pipe.send(("result", fn(lins.init_mesh(shape, AXES, timeout=timeout))))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        raise


def processes(shape, fn, timeout=30.0):
    """Calls fn(mesh) in a process for each rank, which must end within a minute."""
    port, ranks = free_port(), []
    for rank in range(shape[0] * shape[1]):
        receive, send = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=play, args=(fn, shape, rank, port, timeout, send))
        process.start()
        send.close()
        ranks.append((process, receive))
    deadline = time.monotonic() + 60
    results = []
    try:
        for rank, (_process, receive) in enumerate(ranks):
            assert receive.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} is silent"
            kind, value = receive.recv()
            assert kind == "result", f"rank {rank}: {value}"
            results.append(value)
        for rank, (process, _) in enumerate(ranks):
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"
    finally:
        for process, _ in ranks:
            process.kill()
    return results


def move_and_train(mesh):
    x = torch.arange(35.0).view(7, 5)
    layouts = ["S0(gpu)", "S1(node) S0(gpu)", "F(gpu,node)", "O(gpu; 1)", "+sum(gpu)", "+max(node)"]
    for source in layouts:
        for target in layouts:
            if source[0] == target[0] == "+" and source != target:
                continue
            d = lins.distribute_tensor(x, mesh, source).redistribute(target)
            assert torch.equal(d.full_tensor(), x), (source, target)

    parts = [torch.full((5,), float(r + 1)) for r in range(mesh.size)]
    for op, want in ("sum", sum(parts)), ("max", parts[-1]), ("min", parts[0]):
        d = lins.DTensor.from_local(parts[mesh.rank], mesh, f"+{op}(node,gpu)")
        assert torch.equal(d.full_tensor(), want), op
    last = mesh.rank + 1 == mesh.size
    rows = lins.DTensor.from_local(torch.ones(1 if last else 2, 3), mesh, "S0(node,gpu)")
    assert rows.shape == (2 * mesh.size - 1, 3)

    options = {"whole": True, "micro_batches": 2, "settings": SIGN_DESCENT}
    want_grads, want = models.train_alone(mesh.size, **options)
    for plan in ("zero1", "zero3", "P=1 G=2x1 OS=2x1"):
        grads, params = models.train(mesh, plan, **options)
        models.assert_equal(grads[-1], want_grads[-1], plan)
        models.assert_equal(params, want, plan)


@pytest.mark.parametrize("shape", [(1, 2), (2, 2)], ids=str)
def test_layouts_and_training_equal_the_single_process(shape):
    processes(shape, move_and_train)


def stay_away(mesh):
    model = lins.lins_shard(Stack(), mesh, "zero3")
    if mesh.rank == 1:
        time.sleep(4.5)
        return None
    start = time.monotonic()
    with pytest.raises(lins.LinsError) as caught:
        models.backward(model, 0, mesh.rank)
    return time.monotonic() - start, str(caught.value)


def test_a_rank_that_stays_away_is_a_time_out_on_the_other():
    (seconds, text), _ = processes((1, 2), stay_away, timeout=3.0)
    assert 2 < seconds < 6
    for part in (
        "all_gather failed on rank 0",
        "'root'",
        "role gather",
        "group [0, 1]",
        "time-out 3 s",
    ):
        assert part in text


MISTAKES = """
import lins, models, sys, torch

def refuse(fn, text):
    try:
        fn()
    except lins.LinsError as e:
        assert text in str(e), e
    else:
        raise AssertionError(text)

Stack = models.Stack
mesh = lins.init_mesh(timeout=30.0)  # its shape from the environment
assert mesh.shape == (1, 2), mesh
rank = mesh.rank
refuse(lambda: lins.lins_shard(Stack(), mesh, "zero3" if rank else "zero9"), "zero9")
refuse(lambda: lins.lins_shard(Stack(d=4 + rank), mesh, "zero3"), "ranks disagree about")
refuse(lambda: lins.init_mesh((2, 2), ("node", "gpu"), timeout=30.0), "2")
model = lins.lins_shard(Stack(), mesh, "zero2")
refuse(lambda: models.backward(model, 0, rank, 2 + rank), "number of micro-batches")
model = lins.lins_shard(Stack(), mesh, "zero3")
models.backward(model, 0, rank)
print("fine", rank)
"""


def launch(code, environment):
    kept = {k: v for k, v in os.environ.items() if k not in rank_environment((1, 1), 0, 0)}
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**kept, **environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_interpreters_end_cleanly_after_mistakes_and_steps():
    port = free_port()
    started = [launch(MISTAKES, rank_environment((1, 2), rank, port)) for rank in range(2)]
    try:
        for rank, process in enumerate(started):
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, f"rank {rank}: {err}"
            assert out.split() == ["fine", str(rank)]
    finally:
        for process in started:
            process.kill()


def test_one_process_is_a_world_of_its_own():
    code = """
import lins, models
mesh = lins.init_mesh()
assert (mesh.shape, mesh.size, mesh.backend) == ((1, 1), 1, "single"), mesh
models.train(mesh, "zero3", micro_batches=3)
"""
    process = launch(code, {})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
