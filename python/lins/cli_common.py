"""What all commands share: how they print, and what they need."""

from __future__ import annotations

import json
from importlib import util
from typing import Any

import click
from rich.console import Console

from lins.errors import LinsError

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, not tables.")

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Bytes(click.ParamType):
    """80G, 64KiB, 77.3e9, 40000000000 -> bytes; K, M, G, T are powers of 1024."""

    name = "BYTES"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number of bytes that a text means."""
        if isinstance(value, int):
            return value
        text = value.strip().upper().removesuffix("IB").removesuffix("B")
        unit = text[-1:] if text[-1:] in _UNITS and not text[-1:].isdigit() else ""
        try:
            return int(float(text.removesuffix(unit)) * _UNITS[unit])
        except (ValueError, OverflowError):
            self.fail(f"{value!r}: write bytes like 80G or 77.3e9", param, ctx)


def console() -> Console:
    """Standard output; wide where nobody looks, so that no cell is folded."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=140)


def print_json(value: object) -> None:
    """Prints a value of lists, dicts, strings and numbers."""
    click.echo(json.dumps(value, indent=2))


def need_torch(command: str) -> None:
    """Raises LinsError where torch is not installed."""
    if util.find_spec("torch") is None:
        raise LinsError(f"lins {command} needs torch: pip install torch")
