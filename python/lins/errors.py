"""The errors that lins raises."""

from __future__ import annotations

from collections.abc import Sequence


class LinsError(Exception):
    """A mistake in what lins was asked to do, or a failure while doing it.

    The message carries the offending values and what would be legal.
    """


class LinsValueError(LinsError, ValueError):
    """Arguments, layouts, policies or models that lins cannot accept."""


class LinsRuntimeError(LinsError, RuntimeError):
    """A collective that failed or timed out, or a rule broken while running."""


class Infeasible(LinsValueError):
    """No plan fits the memory that is there.

    least_bytes is the smallest cap under which there is a plan, largest the largest items of that
    plan ({item: bytes}), suggestions changes of the job that would fit.
    """

    def __init__(
        self,
        message: str,
        least_bytes: int = 0,
        largest: dict[str, int] | None = None,
        suggestions: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes
        self.largest = dict(largest or {})
        self.suggestions = list(suggestions)
