"""Text that every machine has: the sources of Python's standard library, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

from lins.demo.settings import Settings
from lins.errors import LinsRuntimeError

CORPUS_BYTES = 1 << 20


def load(limit: int = CORPUS_BYTES) -> torch.Tensor:
    """(limit,) uint8: the library's modules one after another, by name, without subpackages."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    if len(text) < limit // 4:
        raise LinsRuntimeError(
            "the demo trains on the standard library's sources, of which "
            f"{folder} has {len(text)} bytes: at least {limit // 4} are needed"
        )
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


class Batches:
    """The rows of every step, the same in all processes, cut into chunks of `rows`.

    A step's chunks are numbered micro-batch by micro-batch, within each rank by rank.
    """

    def __init__(self, s: Settings, ranks: int) -> None:
        self._text = load()
        self._rows, self._length, self._seed = s.rows, s.seq_len, s.seed
        self._ranks = ranks
        self.count = s.micro_batches * ranks

    def chunk(self, step: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a chunk, each (rows, seq_len) int64: targets are a byte ahead."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        last = len(self._text) - self._length
        starts = torch.randint(last, (self.count, self._rows), generator=generator)[index]
        rows = torch.stack([self._text[i : i + self._length + 1] for i in starts.tolist()]).long()
        return rows[:, :-1], rows[:, 1:]

    def of_rank(self, step: int, micro_batch: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The chunk of a rank in one micro-batch."""
        return self.chunk(step, micro_batch * self._ranks + rank)
