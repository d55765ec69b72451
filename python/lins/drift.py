"""What lins.Watch has to say. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text


class Drift(NamedTuple):
    """One kind of collective beside the profile.

    expected, measured: seconds, measured the median over the window of the slowest group. ratio:
    measured / expected. extrapolated: the profile's time was not measured. checks: so many in a
    row beyond the factor, since that step. drifted: and long enough.
    """

    role: str
    op: str
    axes: str
    gpus: int
    nodes: int
    bytes: int
    expected: float
    extrapolated: bool
    measured: float
    ratio: float
    checks: int
    since: int | None
    drifted: bool


@dataclass(frozen=True)
class DriftReport:
    """All kinds of collectives beside the profile; prints as a table.

    skipped: checks in which ranks had not done the same, so that nothing could be compared.
    fallback: the policy to switch to, None while nothing has drifted.
    """

    rows: list[Drift]
    profile: str
    factor: float
    steps: int
    checks: int
    skipped: int
    fallback: str | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return self.__dict__ | {"rows": [r._asdict() for r in self.rows]}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title = f"{self.checks} checks in {self.steps} steps, profile {self.profile}"
        table = Table(title=escape(title), title_justify="left")
        for name in ("role", "operation", "GPUs x nodes"):
            table.add_column(name)
        for name in ("bytes", "profile, ms", "measured, ms", "ratio"):
            table.add_column(name, justify="right")
        table.add_column("")
        for r in self.rows:
            mark = "*" if r.extrapolated else ""
            state = f"drifted since step {r.since}" if r.drifted else ""
            table.add_row(
                r.role,
                r.op,
                f"{r.gpus}x{r.nodes}",
                f"{r.bytes:,}",
                f"{r.expected * 1e3:.3f}{mark}",
                f"{r.measured * 1e3:.3f}",
                f"{r.ratio:.2f}",
                state or ("" if not r.checks else f"beyond for {r.checks} checks"),
                style="bold red" if r.drifted else "",
            )
        yield Group(table, *map(Text, self._notes()))

    def _notes(self) -> list[str]:
        notes = [f"drifted: more than {self.factor:g} times slower or faster, for long enough"]
        if any(r.extrapolated for r in self.rows):
            notes.append("* not measured by the profile: extrapolated")
        if self.skipped:
            notes.append(f"{self.skipped} checks compared nothing: ranks had not done the same")
        if self.fallback is not None:
            notes.append(
                f"conservative policy: {self.fallback}; to switch, save a checkpoint and load it "
                "under that policy"
            )
        return notes

    def __str__(self) -> str:
        out = StringIO()
        Console(file=out, width=120, no_color=True).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
