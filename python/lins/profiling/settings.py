"""What to measure, and for how long."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Settings:
    """Sizes in bytes, times in seconds.

    output: the file. factor: from one size to the next. sub_meshes: also groups of fewer than all
    GPUs of a node over several nodes. budget: of the whole run; None: until every point is done.
    point_budget: the most for one point. resume: go on from what an earlier run measured.
    """

    output: str
    name: str | None = None
    min_bytes: int = 4096
    max_bytes: int | None = None  # None: 64 MiB on CPUs, 1 GiB on GPUs
    factor: int = 2
    sub_meshes: bool = True
    budget: float | None = None
    point_budget: float = 1.0
    dtype: str | None = None  # None: fp32 on CPUs, bf16 on GPUs
    resume: bool = True

    @classmethod
    def quick(cls, **changes: Any) -> Self:
        """About a minute: every fourth size, no groups of parts of nodes."""
        return cls(**{"budget": 60.0, "factor": 4, "sub_meshes": False, **changes})

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)
