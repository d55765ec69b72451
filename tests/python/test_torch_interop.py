"""DTensors of lins to and from those of torch, over real processes."""

import socket
import subprocess
import sys
from pathlib import Path

import lins
import pytest
import torch
from lins.testing import run

WORKER = Path(__file__).with_name("torch_interop_worker.py")


@pytest.mark.parametrize("processes", [2, 4])
def test_round_trips_between_processes(processes):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(processes), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        outputs = [w.communicate(timeout=90)[0] for w in workers]
    finally:
        for w in workers:
            w.kill()
    for w, out in zip(workers, outputs, strict=True):
        assert w.returncode == 0 and "all good" in out, out


def test_ranks_as_threads_are_refused():
    def f(m):
        with pytest.raises(lins.LinsError, match="torchrun"):
            lins.distribute_tensor(torch.ones(4), m, "S0(gpu)").to_torch()

    run((1, 2), ("node", "gpu"), f)


def test_layouts_without_an_equivalent_are_refused():
    def f(m):
        for layout in ("F(gpu)", "O(gpu; 0)", "S0(gpu:2)"):
            with pytest.raises(lins.LinsError, match="no equivalent in torch"):
                lins.zeros((8, 3), mesh=m, placements=layout).to_torch()
        with pytest.raises(lins.LinsError, match="does not divide"):
            lins.zeros((9, 3), mesh=m, placements="S0(gpu,node)").to_torch()

    run((2, 4), ("node", "gpu"), f)
