"""What the demonstration trains, and how much of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

POLICIES = ("ddp", "zero3", "P=1 G=1 OS=2", "P=2 G=2 OS=4")

# Of losses and gradient norms, relative to the single process. fp32 sums in another order differ in
# the last bits, and AdamW carries that on: over 16 steps losses were seen to differ by
# 6e-8 and norms by 2e-7. On a batch where the norm is ill-conditioned (step 20) it was 4e-5; there
# the single process differs from itself by 2e-5 when its chunks come in reverse order. What can go
# wrong (a gradient not averaged, a stale parameter) moves them by far more.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Settings:
    """Sizes of the model, the data and the run.

    rows: sequences per micro-batch and rank. seq_len: predicted bytes per sequence.
    """

    policies: tuple[str, ...] = POLICIES
    steps: int = 16
    micro_batches: int = 2
    rows: int = 1
    seq_len: int = 128
    dim: int = 256
    layers: int = 6
    heads: int = 4
    hidden: int = 688
    tied: bool = False
    lr: float = 2e-3
    max_norm: float = 1.0
    seed: int = 0

    @classmethod
    def short(cls, **changes: object) -> Settings:
        """A model of 0.1 M parameters and a few steps: seconds in place of minutes."""
        small = dict(steps=4, seq_len=32, dim=64, layers=2, heads=2, hidden=176)
        return cls(**{**small, **changes})

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> Settings:
        """What to_dict gave, JSON in between or not."""
        return cls(**{**values, "policies": tuple(values["policies"])})
