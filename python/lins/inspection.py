"""Pictures of layouts: which rank holds which elements; tables of plans and models.

Needs no torch.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from lins._planning import Layout, Plan
from lins.errors import LinsValueError

_TERMINAL = ("cyan", "green", "yellow", "magenta", "blue", "red", "bright_cyan", "bright_green")
_SVG = ("#8ecae6", "#b7e4c7", "#ffe8a3", "#e0bbe4", "#a9bcf5", "#ffadad", "#cdeac0", "#fde2e4")
_MOST_CELLS = 24  # along one side of the picture in a terminal


class Inspection:
    """What inspect() returns: a rich renderable, HTML in a notebook, and `svg`, a picture alone."""

    def __init__(self, layout: Layout, title: str) -> None:
        self.layout = layout
        self.title = title
        self._blocks = _Blocks(layout)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(
            Text(self.title, style="bold"), *self._notes(), self._picture(), self._holders()
        )

    def __str__(self) -> str:
        console = Console(width=100, no_color=True, force_terminal=False, record=True, file=_Sink())
        console.print(self)
        return console.export_text().rstrip()

    def __repr__(self) -> str:
        return f"<lins.inspect: {self.title}>"

    @property
    def svg(self) -> str:
        """The tensor as an SVG drawing, sides in proportion, one rectangle per distinct block."""
        return self._blocks.svg()

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>"
            for row in self._blocks.rows()
        )
        head = "".join(f"<th>{c}</th>" for c in _COLUMNS)
        notes = "".join(f"<div>{html.escape(n.plain)}</div>" for n in self._notes())
        return (
            f"<div><b>{html.escape(self.title)}</b>{notes}{self.svg}"
            f"<table><tr>{head}</tr>{rows}</table></div>"
        )

    def _notes(self) -> list[Text]:
        pending = [t for t in str(self.layout).replace("; ", ";").split(" ") if t.startswith("+")]
        if not pending:
            return []
        return [
            Text(f"pending: {' '.join(pending)}; ranks that share a block each hold a part of it")
        ]

    def _picture(self) -> Table:
        b = self._blocks
        table = Table(box=box.SQUARE, show_lines=True, header_style="dim")
        table.add_column(b.corner, style="dim", no_wrap=True)
        rows, columns = b.bounds
        for i in range(min(len(columns) - 1, _MOST_CELLS)):
            table.add_column(_span(columns[i], columns[i + 1]), justify="center", no_wrap=True)
        for i in range(min(len(rows) - 1, _MOST_CELLS)):
            cells = [
                Text(_ranks(owners), style=_TERMINAL[b.colour(owners) % len(_TERMINAL)])
                for owners in b.cells[i][:_MOST_CELLS]
            ]
            label = "ranks" if b.row is None else _span(rows[i], rows[i + 1])
            table.add_row(label, *cells)
        if max(len(rows), len(columns)) - 1 > _MOST_CELLS:
            table.caption = f"the first {_MOST_CELLS} blocks along each side"
        return table

    def _holders(self) -> Table:
        table = Table(*_COLUMNS, box=box.SIMPLE)
        for row in self._blocks.rows():
            table.add_row(*row)
        return table


_COLUMNS = ("ranks", "holds", "local shape", "elements")


class _Blocks:
    """The tensor cut, along at most two dimensions, wherever some rank's part begins or ends."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        mesh = layout.mesh
        self.ranges = [layout.ranges(r) for r in range(mesh.size)]
        self.flat = "F(" in str(layout) or "O(" in str(layout)
        shape = (layout.numel,) if self.flat else tuple(layout.shape)
        # Draw the dimensions that are split; of a matrix both.
        split = [d for d in range(len(shape)) if any(r[d] != (0, shape[d]) for r in self.ranges)]
        dims = list(range(len(shape))) if len(shape) <= 2 else split[:2]
        self.row = dims[0] if len(dims) == 2 else None
        self.column = dims[-1] if dims else None
        self.bounds = [self._bounds(d, shape) for d in (self.row, self.column)]
        rows, columns = self.bounds
        self.cells = [
            [self._owners(rows[i], columns[j]) for j in range(len(columns) - 1)]
            for i in range(len(rows) - 1)
        ]
        names = {self.row: "rows", self.column: "columns"} if len(shape) == 2 else {}
        if self.flat:
            self.corner = "elements"
        else:
            self.corner = " \\ ".join(
                names.get(d, f"dim {d}") for d in (self.row, self.column) if d is not None
            )
        self._colours: dict[tuple[int, ...], int] = {}
        for line in self.cells:
            for owners in line:
                self._colours.setdefault(owners, len(self._colours))

    def colour(self, owners: tuple[int, ...]) -> int:
        return self._colours[owners]

    def _bounds(self, dim: int | None, shape: Sequence[int]) -> list[int]:
        if dim is None:
            return [0, 1]
        cuts = {0, shape[dim]} | {x for r in self.ranges for x in r[dim] if self._holds(r)}
        return sorted(cuts)

    @staticmethod
    def _holds(ranges: Sequence[tuple[int, int]]) -> bool:
        return all(a < b for a, b in ranges)

    def _owners(self, row: int, column: int) -> tuple[int, ...]:
        def covers(ranges: Sequence[tuple[int, int]], dim: int | None, at: int) -> bool:
            return dim is None or ranges[dim][0] <= at < ranges[dim][1]

        return tuple(
            rank
            for rank, r in enumerate(self.ranges)
            if self._holds(r) and covers(r, self.row, row) and covers(r, self.column, column)
        )

    def rows(self) -> list[tuple[str, str, str, str]]:
        """One line for each distinct part: ranks, what they hold, local shape, elements."""
        parts: dict[tuple[Any, ...], list[int]] = {}
        for rank, r in enumerate(self.ranges):
            parts.setdefault((tuple(r), self.layout.local_shape(rank)), []).append(rank)
        out = []
        for (ranges, shape), ranks in parts.items():
            numel = math.prod(shape)
            if numel == 0:
                held = "nothing"
            elif self.flat:
                held = f"elements {_span(*ranges[0])}"
            else:
                held = " x ".join(_span(*r) for r in ranges) or "the scalar"
            out.append((_ranks(ranks), held, str(tuple(shape)), f"{numel:,}"))
        return out

    def svg(self) -> str:
        rows, columns = self.bounds
        height, width = (max(b[-1], 1) for b in self.bounds)
        high = 40.0 if self.row is None else min(max(400 * height / width, 80.0), 400.0)
        wide = 480.0
        left, top = 64.0, 24.0
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 8:.0f}" '
            f'height="{top + high + 8:.0f}" font-family="sans-serif" font-size="11">'
        ]
        ys = [top + high * v / height for v in rows]
        xs = [left + wide * v / width for v in columns]
        for i, line in enumerate(self.cells):
            for j, owners in enumerate(line):
                text = html.escape(_ranks(owners))
                out.append(
                    f'<rect x="{xs[j]:.1f}" y="{ys[i]:.1f}" width="{xs[j + 1] - xs[j]:.1f}" '
                    f'height="{ys[i + 1] - ys[i]:.1f}" stroke="#444" '
                    f'fill="{_SVG[self.colour(owners) % len(_SVG)]}"><title>{text}</title></rect>'
                    f'<text x="{(xs[j] + xs[j + 1]) / 2:.1f}" '
                    f'y="{(ys[i] + ys[i + 1]) / 2 + 4:.1f}" '
                    f'text-anchor="middle">{text}</text>'
                )
        for v, y in zip(rows[:-1] if self.row is not None else [], ys, strict=False):
            out.append(f'<text x="{left - 6}" y="{y + 10:.1f}" text-anchor="end">{v}</text>')
        for v, x in zip(columns[:-1] if self.column is not None else [], xs, strict=False):
            out.append(f'<text x="{x:.1f}" y="{top - 8}">{v}</text>')
        return "".join(out) + "</svg>"


class _Sink:
    """A file that keeps nothing: the console records."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def _span(begin: int, end: int) -> str:
    return f"[{begin}, {end})"


def _ranks(ranks: Sequence[int]) -> str:
    """0-3, 8."""
    if not ranks:
        return "nobody"
    runs: list[list[int]] = []
    for r in ranks:
        if runs and runs[-1][1] == r - 1:
            runs[-1][1] = r
        else:
            runs.append([r, r])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _layout_of(x: object) -> tuple[Layout, str] | None:
    """The layout to draw and its title."""
    if isinstance(x, Layout):
        return x, f"{x} of {x.shape} on {x.mesh}"
    layout = getattr(x, "layout", None)
    if isinstance(layout, Layout) and type(x).__name__ == "DTensor":
        return layout, f"{layout} of {layout.shape} on {layout.mesh}, {x.dtype}, rank {x.mesh.rank}"
    return None


class ModelInspection:
    """What inspect() returns for a wrapped model: a rich renderable, HTML in a notebook."""

    def __init__(self, model: Any) -> None:
        core = model._lins_handle.core
        self.title = f"{type(model).__name__} on {core.mesh!r}, rank {core.mesh.rank}"
        self.rows = []
        for unit, plan, trainable in core.plans():
            moves = [
                f"{name}: {', '.join(f'{s.kind}({s.axes})' for s in steps)}"
                for name in ("gather", "regather", "scatter", "accumulate", "reduce", "update")
                if (steps := [s for s in getattr(plan, name).steps if s.recv_bytes])
                and (trainable or "gather" in name)
                and not (name == "regather" and plan.between == plan.param)
            ]
            places = [
                str(x) if trainable or not i else "-"
                for i, x in enumerate((plan.param, plan.grad, plan.optim))
            ]
            self.rows.append((unit, f"{plan.total:,}", *places, "; ".join(moves) or "nothing"))
        held = core.memory()
        self.bytes = {k: held[k] for k in ("param", "grad", "optim")}
        if held["optim_host"]:
            self.bytes["optim in host memory"] = held["optim_host"]

    _COLUMNS = ("unit", "elements", "P", "G", "OS", "moves")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(*self._COLUMNS, box=box.SIMPLE, title=self.title, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        held = ", ".join(f"{k} {v:,}" for k, v in self.bytes.items())
        yield Group(table, Text(f"bytes held by this rank: {held}"))

    def __str__(self) -> str:
        console = Console(width=160, no_color=True, force_terminal=False, record=True, file=_Sink())
        console.print(self)
        return console.export_text().rstrip()

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>"
            for row in self.rows
        )
        head = "".join(f"<th>{c}</th>" for c in self._COLUMNS)
        return f"<div><b>{html.escape(self.title)}</b><table><tr>{head}</tr>{rows}</table></div>"


def inspect(x: object) -> Any:
    """Shows a layout or DTensor as a picture, a plan or a wrapped model as tables.

    Layouts and DTensors: which rank holds which elements, with an SVG in `.svg`. Plans:
    plan.explain(). Models: the layouts of P, G and OS of each unit, the collectives between them,
    and the bytes of this rank. Prints in a terminal; a notebook shows the result as HTML. Returns
    what was shown. Nothing is communicated.

    Raises LinsError for anything else.
    """
    if isinstance(x, Plan):
        report = x.explain()
        print(report)
        return report
    found = _layout_of(x)
    if hasattr(x, "_lins_handle"):
        view: Any = ModelInspection(x)
    elif found is not None:
        view = Inspection(*found)
    else:
        raise LinsValueError(
            "inspect takes a lins.Layout, a lins.DTensor, a lins.Plan or a wrapped model, not "
            f"{type(x).__module__}.{type(x).__qualname__}"
        )
    if "ipykernel" not in sys.modules:
        Console().print(view)
    return view
