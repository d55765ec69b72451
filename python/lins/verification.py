"""Verification: what ranks must hold alike is compared while they train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lins import _core


@contextmanager
def verify() -> Iterator[None]:
    """Compares checksums among ranks while wrapped models train inside the block.

    Compared are the parameters of each unit before its forwards and backwards, among all ranks;
    the reduced gradients after the last micro-batch, and P, masters and optimizer states after
    each update, among the ranks that hold the same elements; and the order of the collectives of
    every group. The comparison takes place at the end of each backward, of each optimizer step
    and of the block; updates do not overlap the next forward meanwhile.

    Collective: every rank enters and leaves. Adds two small exchanges to each backward and step,
    and a pass over all parameters and states.

    Raises LinsError on every rank at the first difference: it names the step, the unit, the
    parameter (or operation) and the ranks.

        with lins.verify():
            model(x).sum().backward()
            opt.step()
    """
    context = _core.RankContext.current()
    context.quiesce()
    context.start_verifying()
    try:
        yield
    except BaseException:
        context.stop_verifying()
        raise
    context.finish_verifying()
