"""Guards: blocks in which lins refuses what the caller does not expect."""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lins import _core

_LIBRARIES = tuple(os.path.dirname(os.path.abspath(f)) + os.sep for f in (__file__, torch.__file__))


def _calling_line() -> str:
    """The innermost line of this thread's Python that is neither lins' nor torch's."""
    frame = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return f"thread {threading.current_thread().name}, which runs no Python of yours"
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}, in {frame.f_code.co_name}" + (f": {text}" if text else "")


@contextmanager
def no_communication() -> Iterator[None]:
    """Makes the first collective that this rank begins inside the block raise LinsError.

    The message names the operation, its bytes and ranks, and the line of Python that caused it
    (that of the call to backward for what a backward does). The rank is the process, or the
    thread where ranks are threads. Groups of one rank never communicate. Enter the block on every
    rank of a group alike: the others would wait for one that raised.

        with lins.no_communication():
            y = x * 2 + x    # one layout: local
    """
    context = _core.RankContext.current()
    context.quiesce()  # what was asked for before may still communicate
    guard = context.forbid(_calling_line)
    try:
        yield
    finally:
        context.remove(guard)
