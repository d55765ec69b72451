"""How far training is: a bar in a terminal, lines elsewhere, nothing on ranks but the first."""

from __future__ import annotations

import sys

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lins.progress import BarReporter


class Reporter(BarReporter):
    """Used as a context manager; writes to standard error."""

    def __init__(self, steps: int, runs: int, shown: bool) -> None:
        self._steps = steps
        super().__init__(
            shown,
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
        )
        self._lines = False
        if self._bar:
            self._task = self._bar.add_task("", total=steps * runs, loss="-")
        else:
            self._lines = shown

    def step(self, name: str, step: int, loss: float) -> None:
        """One more step of run `name` is done: number `step`, from 0, with this process' loss."""
        if self._bar:
            self._bar.update(self._task, advance=1, description=name, loss=f"{loss:.3f}")
        elif self._lines and (step + 1 == self._steps or (step + 1) % 10 == 0):
            print(
                f"{name}: step {step + 1} of {self._steps}, loss {loss:.3f}",
                file=sys.stderr,
                flush=True,
            )
