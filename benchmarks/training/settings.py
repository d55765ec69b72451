"""What a run trains, and for how long."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from training.model import Shape

PEERS = ("torch ddp", "torch zero", "torch fsdp2", "torch fsdp2 keep", "torch hsdp")
PRESETS = ("ddp", "zero1", "zero2", "zero3", "fsdp2", "hsdp")

# The candidate of lins that places every state as a peer does.
SAME_LAYOUT = {
    "torch ddp": "lins ddp",
    "torch zero": "lins zero1",
    "torch fsdp2": "lins fsdp2",
    "torch fsdp2 keep": "lins zero3 keep",
    "torch hsdp": "lins hsdp",
}

# Of losses, relative, over the steps of a run: fp32 sums in another order differ in the last bits,
# and AdamW carries that on.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Settings:
    """Sizes of one run: a link rate and a number of micro-batches.

    gbit: of the link between the nodes, each way; None: unlimited. profile: file of the cluster's
    profile. interface: of each node, whose counters are read; none on one host. only: candidates
    that take part, besides the solved ones; empty: all. warm: steps before those timed, in each
    turn of each candidate. cap: of memory, as a part of what DDP needs. neighbours: placements next
    to the solved plan that take part. warm_rounds: rounds that are not counted.
    """

    shape: Shape = field(default_factory=Shape)
    nodes: int = 2
    per_node: int = 2
    micro_batches: int = 1
    gbit: float | None = None
    profile: str = ""
    interfaces: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    rounds: int = 7
    warm_rounds: int = 1
    warm: int = 1
    steps: int = 2
    cap: float = 0.7
    neighbours: int = 2
    lr: float = 1e-3
    trace: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """What to_dict gave, JSON in between or not."""
        lists = {k: tuple(values[k]) for k in ("interfaces", "only")}
        return cls(**{**values, **lists, "shape": Shape(**values["shape"])})
