"""What the bars of long commands share."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class BarReporter:
    """A bar while the context is open, in a terminal; None elsewhere, for others to print lines.

    Written to standard error: standard output is for results.
    """

    def __init__(self, shown: bool, *columns: ProgressColumn) -> None:
        self._bar: Progress | None = None
        if shown and sys.stderr.isatty():
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
