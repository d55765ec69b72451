"""What all commands share: how they print, and what they need."""

from __future__ import annotations

import json
from importlib import util

import click
from rich.console import Console

from lins.errors import LinsError

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, not tables.")


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
