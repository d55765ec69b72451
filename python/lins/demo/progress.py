"""How far training is: a bar in a terminal, lines elsewhere, nothing on ranks but the first."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)


class Reporter:
    """Used as a context manager; writes to standard error: standard output is for results."""

    def __init__(self, steps: int, runs: int, shown: bool) -> None:
        self._steps = steps
        self._bar: Progress | None = None
        self._lines = False
        if shown and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description:<24}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=steps * runs, loss="-")
        else:
            self._lines = shown

    def __enter__(self) -> Reporter:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

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
