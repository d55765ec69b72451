"""What a wrapped model's plan says, and what a rank was seen to hold and to receive."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

import lins
from lins.sharding import handle_of

STATES = ("param", "grad", "optim")
ROLES = ("gather", "reduce", "update")
_BYTES = {"param": 4, "grad": 4, "optim": 8}  # fp32 throughout, two moments


def planned(model: torch.nn.Module, micro_batches: int) -> dict[str, Any]:
    """The plan of a block in the notation, and over all units the bytes held and received.

    formula: bytes per element x parameters / pieces. held: the same with each unit padded.
    """
    plans = [plan for _, plan, _ in handle_of(model).core.plans()]
    block = plans[-1]
    parameters = sum(p.numel() for p in model.parameters())
    held, traffic = [p.held_bytes() for p in plans], [p.traffic(micro_batches) for p in plans]
    moments = ("gather", "accumulate", "reduce", "update")
    received = {m: sum(t[m] for t in traffic) for m in moments}
    return {
        "factors": {k: list(getattr(block.placement, k)) for k in STATES},
        "layouts": {k: str(getattr(block, k)) for k in STATES},
        "moments": {m: _moment(getattr(block, m)) for m in moments},
        "formula": {
            k: math.ceil(_BYTES[k] * parameters / math.prod(getattr(block.placement, k)))
            for k in STATES
        },
        "held": {k: sum(h[k] for h in held) for k in STATES},
        # Micro-batches and the last reduction are one role in a trace.
        "received": {
            "gather": received["gather"],
            "reduce": received["accumulate"] + received["reduce"],
            "update": received["update"],
        },
    }


def _moment(plan: lins.RedistributionPlan) -> dict[str, Any]:
    steps = [f"{x.kind}({x.axes})" if x.axes else x.kind for x in plan.steps]
    return {"from": str(plan.src), "to": str(plan.dst), "steps": steps}


def held(model: torch.nn.Module) -> dict[str, int]:
    """Bytes of this rank by state, and the most that was lent for gathered units and gradients."""
    memory = lins.memory(model)
    return {k: memory[k] for k in (*STATES, "peak_buffers")}


def received(records: Iterable[lins.TraceRecord]) -> dict[str, int]:
    """Bytes that this rank received in the traced step, by role."""
    out = dict.fromkeys(ROLES, 0)
    for r in records:
        if r.role in out:
            out[r.role] += r.recv_bytes
    return out
