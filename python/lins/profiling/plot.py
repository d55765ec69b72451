"""A picture of a profile: time and bandwidth against size, one curve per mesh."""

from __future__ import annotations

from pathlib import Path

import lins
from lins.errors import LinsRuntimeError

OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")


def plot(profile: lins.Profile, path: str | Path) -> None:
    """Writes the picture; the format is that of the path's ending. Needs matplotlib.

    Points are what was measured, crosses those that are not used (spikes), lines what is used.
    Bandwidth is bytes (as docs/profile.md defines them) per second.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise LinsRuntimeError("plotting needs matplotlib: pip install matplotlib") from None

    spikes = {(s["op"], s["gpus"], s["nodes"], s["bytes"]) for s in profile.spikes}
    meshes = list(dict.fromkeys((c.gpus, c.nodes) for c in profile.curves))
    figure = Figure(figsize=(4 * len(OPERATIONS), 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(OPERATIONS), sharex=True, sharey="row", squeeze=False)
    for column, op in enumerate(OPERATIONS):
        times, rates = axes[0][column], axes[1][column]
        times.set_title(op)
        rates.set_xlabel("bytes")
        for ax in (times, rates):
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.grid(alpha=0.3)
        for curve in profile.curves:
            if curve.op != op:
                continue
            mesh = (curve.gpus, curve.nodes)
            colour = f"C{meshes.index(mesh) % 10}"
            sizes = [p.bytes for p in curve.points]
            used = [profile.time(op, b, gpus=mesh[0], nodes=mesh[1]) for b in sizes]
            label = f"{mesh[0]}x{mesh[1]}"
            times.plot(sizes, used, color=colour, label=label)
            rates.plot(sizes, [b / t for b, t in zip(sizes, used, strict=True)], color=colour)
            for marker, wanted in ((".", False), ("x", True)):
                shown = [p for p in curve.points if ((op, *mesh, p.bytes) in spikes) == wanted]
                x = [p.bytes for p in shown]
                times.plot(x, [p.median for p in shown], marker, color=colour)
                rates.plot(x, [p.bytes / p.median for p in shown], marker, color=colour)
    axes[0][0].set_ylabel("seconds")
    axes[1][0].set_ylabel("bytes per second")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, title="GPUs x nodes", loc="outside right upper")
    figure.suptitle(f"{profile.name}: {profile.gpus_per_node} GPUs per node x {profile.nodes}")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as e:
        raise LinsRuntimeError(f"cannot write the picture '{path}': {e}") from None
