"""Records of what a rank communicates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from lins import _core


class TraceRecord(NamedTuple):
    """One logical collective of this rank.

    bytes: all_gather the gathered, reduce_scatter the unreduced, all_reduce the buffer, broadcast
    the message. recv_bytes: what this rank received. start, end: seconds of a monotonic clock.
    role: gather, reduce, update, other. axes: in the notation of layouts.
    """

    op: str
    role: str
    unit: str
    axes: str
    group: list[int]
    bytes: int
    recv_bytes: int
    start: float
    end: float
    sequence: int
    rank: int


class Trace:
    """The records of one `with lins.trace()`."""

    def __init__(self, context: _core.RankContext, id: int) -> None:
        self._context = context
        self._id = id
        self._closed: list[TraceRecord] | None = None

    @property
    def records(self) -> list[TraceRecord]:
        """What was asked for inside the block so far, in order; waits until it has begun."""
        if self._closed is not None:
            return self._closed
        self._context.quiesce()
        return self._context.trace(self._id, TraceRecord)

    def _close(self, wait: bool) -> None:
        if wait:
            self._context.quiesce()
        self._closed = self._context.trace(self._id, TraceRecord)
        self._context.stop_trace(self._id)


@contextmanager
def trace() -> Iterator[Trace]:
    """Records this rank's collectives: `with lins.trace() as t: step()`, then t.records.

    The rank is the process, or the thread where ranks are threads. Nothing is communicated. Both
    ends of the block wait for communication under way, of models on this rank.
    """
    context = _core.RankContext.current()
    context.quiesce()  # updates of an earlier step, say
    t = Trace(context, context.start_trace())
    try:
        yield t
    except BaseException:
        t._close(wait=False)
        raise
    t._close(wait=True)
