"""Points measured so far, kept beside the profile until it is complete."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lins.processes import write_atomically

Key = tuple[str, int, int, int]  # operation, GPUs per node, nodes, bytes
_SAVE_EVERY = 2.0  # seconds


class Partial:
    """Measured points by key. Only rank 0 has a path; the others keep nothing."""

    def __init__(self, output: Path | None, environment: dict[str, str]) -> None:
        self._path = output and output.with_name(output.name + ".partial")
        self._environment = environment
        self._saved = time.monotonic()
        self.points: dict[Key, dict[str, Any]] = {}

    def load(self) -> str:
        """Takes over what an earlier run in the same environment left; says what came of it."""
        if self._path is None or not self._path.exists():
            return "nothing to go on from"
        try:
            found = json.loads(self._path.read_text())
            environment, points = found["environment"], found["points"]
            read = {(p["op"], p["gpus"], p["nodes"], p["point"]["bytes"]): p for p in points}
        except (OSError, ValueError, KeyError, TypeError) as e:
            return f"{self._path} is no record of an earlier run ({e!r}): measuring anew"
        if environment != self._environment:
            keys = sorted(set(environment) | set(self._environment))
            other = [k for k in keys if environment.get(k) != self._environment.get(k)]
            return f"{self._path} was measured with other {', '.join(other)}: measuring anew"
        self.points = {k: p["point"] for k, p in read.items()}
        return f"going on from {len(points)} points in {self._path}"

    def add(self, key: Key, point: dict[str, Any]) -> None:
        """Keeps a point, and now and then the file."""
        self.points[key] = point
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        self._saved = time.monotonic()
        if self._path is None:
            return
        points = [
            {"op": op, "gpus": gpus, "nodes": nodes, "point": point}
            for (op, gpus, nodes, _), point in self.points.items()
        ]
        write_atomically(self._path, {"environment": self._environment, "points": points})

    def remove(self) -> None:
        """The profile is complete."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
