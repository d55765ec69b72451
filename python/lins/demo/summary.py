"""One report out of what all ranks measured, and its verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from lins.demo.settings import TOLERANCE, Settings

STATES = ("param", "grad", "optim")
ROLES = ("gather", "reduce", "update")


def summarize(
    s: Settings, mesh: dict[str, int], alone: dict[str, Any], ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    """The report of a run.

    Args:
        s: what was run.
        mesh: sizes by axis.
        alone: result of the single process.
        ranks: by rank, the result of each policy.

    Returns a dict for JSON. By policy: memory and received by item, each as measured on the worst
    rank and as planned; losses, the means over ranks and micro-batches; norms of the gradients; the
    largest relative difference of each from the single process' value of that step.
    agree: all differences are within the tolerance. AdamW hardly minds gradients that are all too
    large, so losses alone would not prove them right: their norms must agree as well.
    bytes_as_planned: every number of bytes measured is the planned one.
    """
    policies = [_policy(name, alone, [r[name] for r in ranks]) for name in s.policies]
    worst = _largest(p["largest_difference"] for p in policies)
    worst_norm = _largest(p["largest_norm_difference"] for p in policies)
    items = [x for p in policies for kind in ("memory", "received") for x in p[kind].values()]
    return {
        "settings": s.to_dict(),
        "mesh": mesh,
        "single": {
            "losses": alone["losses"],
            "norms": alone["norms"],
            "step_seconds": _median(alone["seconds"]),
        },
        "policies": policies,
        "tolerance": TOLERANCE,
        "largest_difference": worst,
        "largest_norm_difference": worst_norm,
        "agree": worst <= TOLERANCE and worst_norm <= TOLERANCE,  # false for NaN
        "bytes_as_planned": all(x["measured"] == x["plan"] for x in items),
    }


def _policy(name: str, alone: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    plan = ranks[0]["plan"]
    losses = [statistics.fmean(x) for x in zip(*(r["losses"] for r in ranks), strict=True)]
    differences = [_difference(r["norms"], alone["norms"]) for r in ranks]
    memory = {
        k: {
            "measured": max(r["memory"][k] for r in ranks),
            "plan": plan["held"][k],
            "formula": plan["formula"][k],
            "padding": plan["held"][k] - plan["formula"][k],
        }
        for k in STATES
    }
    received = {
        k: {"measured": max(r["received"][k] for r in ranks), "plan": plan["received"][k]}
        for k in ROLES
    }
    received["total"] = {
        "measured": max(sum(r["received"].values()) for r in ranks),
        "plan": sum(plan["received"].values()),
    }
    return {
        "policy": name,
        "factors": plan["factors"],
        "layouts": plan["layouts"],
        "moments": plan["moments"],
        "memory": memory,
        "peak_buffers": max(r["memory"]["peak_buffers"] for r in ranks),
        "received": received,
        "losses": losses,
        "norms": ranks[0]["norms"],
        # A step is as long as its slowest rank takes.
        "step_seconds": _median([max(x) for x in zip(*(r["seconds"] for r in ranks), strict=True)]),
        "largest_difference": _difference(losses, alone["losses"]),
        "largest_norm_difference": _largest(differences),
    }


def _difference(values: list[float], reference: list[float]) -> float:
    return _largest(abs(a - b) / abs(b) for a, b in zip(values, reference, strict=True))


def _largest(values: Iterable[float]) -> float:
    """The maximum; not a number as soon as one is none, which max() may let pass."""
    values = list(values)
    return max(values) if all(v == v for v in values) else float("nan")


def _median(seconds: list[float]) -> float:
    """Of all steps but the first, which warms up."""
    return statistics.median(seconds[1:] or seconds)
