"""How far measuring is: a bar in a terminal, a line now and then elsewhere, on rank 0."""

from __future__ import annotations

import sys
import time

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lins.progress import BarReporter

_LINE_EVERY = 5.0  # seconds


class Reporter(BarReporter):
    """Used as a context manager; writes to standard error."""

    def __init__(self, total: int, shown: bool) -> None:
        self._total = total
        self._shown = shown
        self._printed = time.monotonic()
        super().__init__(
            shown,
            TextColumn("{task.description:<40}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        if self._bar:
            self._task = self._bar.add_task("", total=total)

    def note(self, text: str) -> None:
        """A line of its own."""
        if self._bar:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)

    def at(self, done: int, what: str) -> None:
        """`done` of all points are there, `what` is next."""
        if self._bar:
            self._bar.update(self._task, completed=done, description=what)
        elif self._shown and time.monotonic() - self._printed > _LINE_EVERY:
            self._printed = time.monotonic()
            self.note(f"{done} of {self._total} points, next {what}")
