"""Which algorithm and protocol NCCL chose, as its own log tells.

NCCL has no call that says so. With NCCL_DEBUG=INFO and the subsystem TUNING it logs a line for each
collective, with names or, in older releases, numbers:

    AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
    AllGather: 4096 Bytes -> Algo 1 proto 0 time 11.2
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

_LINE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")
_OPERATIONS = {
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_reduce": "allreduce",
    "broadcast": "broadcast",
    "all_to_all": "alltoall",
}


class NcclLog:
    """Reads the log of this process as it grows. Made before the first communicator."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._read = 0
        if "NCCL_DEBUG" in environment or "NCCL_DEBUG_FILE" in environment:
            return  # the user's own settings stay
        self._folder = tempfile.TemporaryDirectory(prefix="lins-nccl-")  # removed with this object
        self._file = Path(self._folder.name) / "log"
        environment |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "TUNING",
            "NCCL_DEBUG_FILE": str(self._file),
        }

    def algorithm(self, op: str) -> str:
        """Of the last collective of a kind since the last call: "ring/simple"; "" if unknown."""
        if self._folder is None or not self._file.exists():
            return ""
        with open(self._file) as f:
            f.seek(self._read)
            text = f.read()
            self._read = f.tell()
        return chosen(text, op)


def chosen(text: str, op: str) -> str:
    """The last choice that a log tells for an operation, "" where it tells none."""
    found = ""
    for name, _, algorithm, protocol in _LINE.findall(text):
        if name.lower() == _OPERATIONS.get(op):
            found = f"{_named(algorithm, _ALGORITHMS)}/{_named(protocol, _PROTOCOLS)}"
    return found


def _named(word: str, names: tuple[str, ...]) -> str:
    if word.isdigit():
        return names[int(word)] if int(word) < len(names) else word
    return word.lower()
