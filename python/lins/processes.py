"""Ranks as processes of this machine, over Gloo: started, watched, and ended, whatever happens.

The module that a launcher starts calls serve(), which takes the settings and hands back the report.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lins.errors import LinsRuntimeError

_GRACE = 5.0  # seconds between asking a process to end and ending it
_LINGER = 30.0  # seconds that ranks may outlive the first that has ended


class Interrupted(Exception):
    """The launcher was asked to stop by a signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


Place = Callable[[int], tuple[list[str], dict[str, str]]]


def launch(
    module: str,
    nodes: int,
    per_node: int,
    settings: dict[str, Any],
    place: Place | None = None,
) -> Any:
    """Runs `python -m module` as nodes x per_node ranks and returns the report of rank 0.

    place: of a node, the command to put before its ranks' own, and changes to their environment,
    such as MASTER_ADDR; without it all ranks are processes of this host that meet on loopback.

    Raises LinsError when a rank fails, after the others have been ended; Interrupted after SIGINT
    or SIGTERM, which are caught meanwhile. No rank outlives this call.
    """
    with tempfile.TemporaryDirectory(prefix="lins-") as name, _signals() as received:
        folder = Path(name)
        (folder / "settings.json").write_text(json.dumps(settings))
        ranks: list[subprocess.Popen] = []
        try:
            # Ctrl-C reaches every process of a terminal; ranks inherit the mask and leave it to us.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                port = _free_port()
                for rank in range(nodes * per_node):
                    where = _environment(rank, nodes * per_node, per_node, port)
                    before, changes = place(rank // per_node) if place else ([], {})
                    ranks.append(_start(module, rank, where | changes, folder, before))
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            _wait(ranks, folder, received)
        finally:
            _end(ranks)
        report = folder / "report.json"
        if not report.exists():
            raise LinsRuntimeError("the ranks ended without a report")
        return json.loads(report.read_text())


def serve(folder: Path, work: Callable[[dict[str, Any]], Any]) -> None:
    """A launched rank: settings.json in; report.json (of the rank that has one) or an error out."""
    threading.Thread(target=_die_with_launcher, daemon=True).start()
    try:
        report = work(json.loads((folder / "settings.json").read_text()))
        if report is not None:
            write_atomically(folder / "report.json", report)
    except BaseException as e:
        error = {
            "time": time.time(),
            "error": f"{type(e).__name__}: {e}",
            "trace": traceback.format_exc(),
        }
        write_atomically(folder / f"error-{os.environ['RANK']}.json", error)
        # Leaving groups in order needs the other ranks, which may be gone.
        os._exit(1)


def write_atomically(path: Path, value: object) -> None:
    """Writes JSON so that a reader sees all of it or no file."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def _die_with_launcher() -> None:
    # The launcher never writes to this pipe: the end of it is the end of the launcher.
    os.read(0, 1)
    os._exit(1)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in a list: nothing is cut short, so no process is forgotten."""
    received: list[int] = []
    before = {
        n: signal.signal(n, lambda signum, _: received.append(signum))
        for n in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)


def _environment(rank: int, size: int, per_node: int, port: int) -> dict[str, str]:
    env = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    if "lo" in (name for _, name in socket.if_nameindex()):
        env["GLOO_SOCKET_IFNAME"] = "lo"  # also where the host's name does not resolve
    return env


def _start(
    module: str, rank: int, env: dict[str, str], folder: Path, before: list[str]
) -> subprocess.Popen:
    # Rank 0 shows the progress; of the others only the log of one that fails is of interest.
    with open(folder / f"log-{rank}", "wb") as log:
        return subprocess.Popen(
            [*before, sys.executable, "-m", module, str(folder)],
            env=env,
            stdin=subprocess.PIPE,  # closed by our end, however we end
            stdout=log,
            stderr=None if rank == 0 else log,
        )


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _wait(ranks: list[subprocess.Popen], folder: Path, received: list[int]) -> None:
    """Returns when all have ended well."""
    deadline = float("inf")
    while True:
        codes = [p.poll() for p in ranks]
        if received:
            raise Interrupted(received[0])
        if any(codes):
            raise LinsRuntimeError(_failure(codes, folder))
        if all(c == 0 for c in codes):
            return
        if 0 in codes:
            deadline = min(deadline, time.monotonic() + _LINGER)
        if time.monotonic() > deadline:
            late = [r for r, c in enumerate(codes) if c is None]
            raise LinsRuntimeError(f"ranks {late} did not end within {_LINGER} s after the others")
        time.sleep(0.05)


def _failure(codes: list[int | None], folder: Path) -> str:
    """Says what the rank that failed first had to say: what others say then is a consequence."""
    time.sleep(0.2)  # for errors that are being written
    killed = next((r for r, c in enumerate(codes) if c is not None and c < 0), None)
    if killed is not None:
        log = (folder / f"log-{killed}").read_text(errors="replace")[-2000:]
        return f"rank {killed} was ended by {signal.Signals(-codes[killed]).name}\n{log}".rstrip()
    errors = {p.stem.split("-")[1]: json.loads(p.read_text()) for p in folder.glob("error-*.json")}
    if errors:
        rank, first = min(errors.items(), key=lambda e: e[1]["time"])
        return f"rank {rank}: {first['error']}\n{first['trace']}".rstrip()
    rank, code = next((r, c) for r, c in enumerate(codes) if c)
    log = (folder / f"log-{rank}").read_text(errors="replace")[-2000:]
    return f"rank {rank} ended with code {code}\n{log}".rstrip()


def _end(ranks: list[subprocess.Popen]) -> None:
    for p in ranks:
        if p.poll() is None:
            p.terminate()
    deadline = time.monotonic() + _GRACE
    for p in ranks:
        try:
            p.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        p.stdin.close()
