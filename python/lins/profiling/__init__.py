"""Measuring a profile of the cluster that a job runs on.

    torchrun ... -m lins profile -o cluster.json          # the ranks of the job
    lins profile --processes 4 --nodes 2 -o here.json     # ranks of this machine, over Gloo

Every operation on every mesh at every size, most useful first: stopped early, the file still covers
the whole range. What was measured is kept beside the file, and the next run goes on from there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lins.errors import LinsValueError
from lins.processes import launch
from lins.profiling.settings import Settings


def run(settings: Settings, processes: int | None, nodes: int) -> dict[str, Any] | None:
    """Measures and writes the profile; the report, or None on ranks that have none.

    processes: how many to start on this machine, over `nodes` pretended nodes; None under torchrun.
    Raises LinsError, also when the time ends before there is anything to write.
    """
    folder = Path(settings.output).resolve().parent
    if not folder.is_dir():
        raise LinsValueError(f"cannot write '{settings.output}': there is no folder {folder}")
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if under_torchrun:
        if processes is not None:
            raise LinsValueError("--processes starts ranks, but torchrun has started them already")
        from lins.profiling.rank import measure

        return measure(settings)
    if processes is None:
        raise LinsValueError(
            "a profile is measured by all ranks of a job: start `lins profile` with torchrun, or "
            "give --processes to start some on this machine"
        )
    if processes < 2 or processes % nodes:
        raise LinsValueError(
            f"{processes} processes on {nodes} nodes: legal are at least two, a multiple of the "
            "nodes"
        )
    return launch("lins.profiling.rank", nodes, processes // nodes, settings.to_dict())
