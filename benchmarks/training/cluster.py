"""Nodes of this machine: network namespaces joined by a pair of virtual Ethernet devices.

Needs the right to create namespaces and queueing disciplines (root), and iproute2's ip and tc.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

PREFIX = "lins-step"
_NETWORK = "10.77.{}.{}"
_MTU = 1500


class ClusterError(Exception):
    """Nodes cannot be emulated here; the message says why."""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Link:
    """Two namespaces whose only connection sends at most `gbit` Gbit/s each way (None: no limit).

    A token bucket of 1 ms, at least 256 KiB so that segments which the device would cut are not
    cut earlier, and a queue of 50 ms. Use as a context manager: both namespaces are gone
    afterwards, also when Python ends otherwise.
    """

    def __init__(self, gbit: float | None, number: int | None = None) -> None:
        self.gbit = gbit
        number = os.getpid() if number is None else number
        self.nodes = [f"{PREFIX}-{number}-{i}" for i in range(2)]
        # Names of devices have 15 characters at most.
        self.interfaces = [f"lins{number % 10_000_000}v{i}" for i in range(2)]
        self.addresses = [_NETWORK.format(number % 250, i + 1) for i in range(2)]

    def __enter__(self) -> Link:
        _need_rights()
        atexit.register(self._remove)
        try:
            for node in self.nodes:
                _run("ip", "netns", "add", node)
            (a, b), (m, n) = self.interfaces, self.nodes
            _run("ip", "link", "add", a, "netns", m, "type", "veth", "peer", "name", b, "netns", n)
            for node, device, address in zip(
                self.nodes, self.interfaces, self.addresses, strict=True
            ):
                _run("ip", "-n", node, "address", "add", f"{address}/24", "dev", device)
                for name in ("lo", device):
                    _run("ip", "-n", node, "link", "set", name, "up")
            self.limit(self.gbit)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def limit(self, gbit: float | None) -> None:
        """Sets the rate of both directions."""
        self.gbit = gbit
        for node, device in zip(self.nodes, self.interfaces, strict=True):
            if gbit is None:
                with contextlib.suppress(ClusterError):  # there is none
                    _run("tc", "-n", node, "qdisc", "del", "dev", device, "root")
                continue
            burst = max(256 * 1024, int(gbit * 1e9 / 8 / 1000))
            shape = f"tbf rate {gbit}gbit burst {burst}b latency 50ms".split()
            _run("tc", "-n", node, "qdisc", "replace", "dev", device, "root", *shape)

    def command(self, node: int) -> list[str]:
        """What to put before a command that is to run in a node."""
        return ["ip", "netns", "exec", self.nodes[node]]

    def _remove(self) -> None:
        atexit.unregister(self._remove)
        for node in self.nodes:
            _delete(node)


def _need_rights() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    why = f"{' and '.join(missing)} not found (Debian's iproute2)" if missing else ""
    if not why and os.geteuid() != 0:
        why = "not running as root"
    if not why:
        name = f"{PREFIX}-{os.getpid()}-test"
        try:
            _run("ip", "netns", "add", name)
        except ClusterError as e:
            why = str(e)
        finally:
            _delete(name)
    if why:
        raise ClusterError(
            "emulating nodes takes the right to create network namespaces and to limit their "
            f"link: {why}. Run as root on a kernel that allows it, or with --one-host: ranks on "
            "this host without a link between nodes, at one unlimited rate"
        )


def _existing() -> list[str]:
    if shutil.which("ip") is None:
        return []
    with contextlib.suppress(ClusterError):
        lines = _run("ip", "netns", "list").splitlines()
        return [x.split()[0] for x in lines if x.strip()]
    return []


def _delete(node: str) -> None:
    """Removes a namespace, with its devices, if it is there."""
    if node in _existing():
        with contextlib.suppress(ClusterError):
            _run("ip", "netns", "delete", node)


def leftovers() -> list[str]:
    """Removes namespaces of benchmarks that were killed, and returns their names.

    Those of a process that lives are left alone.
    """
    found = []
    for name in _existing():
        match = re.fullmatch(rf"{PREFIX}-(\d+)-\w+", name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _delete(name)
            found.append(name)
    return found


def sent_bytes(device: str) -> int:
    """Bytes that a device of this namespace has sent, headers included."""
    return int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


@contextlib.contextmanager
def nodes(gbit: float | None, one_host: bool) -> Iterator[Link | None]:
    """The nodes of a run; None on one host."""
    if one_host:
        yield None
        return
    with Link(gbit) as link:
        yield link
