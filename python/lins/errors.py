"""The errors that lins raises."""


class LinsError(Exception):
    """A mistake in what lins was asked to do, or a failure while doing it.

    The message carries the offending values and what would be legal.
    """


class LinsValueError(LinsError, ValueError):
    """Arguments, layouts, policies or models that lins cannot accept."""


class LinsRuntimeError(LinsError, RuntimeError):
    """A collective that failed or timed out, or a rule broken while running."""


class Infeasible(LinsValueError):
    """No plan fits the memory that is there."""
