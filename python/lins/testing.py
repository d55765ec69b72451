"""Worlds for tests: ranks as threads of one process, injected delays, random layouts.

def check(mesh):
x = lins.distribute_tensor(torch.arange(8), mesh, "S0(gpu)")
return x.full_tensor().tolist()

assert lins.testing.run((2, 2), ("node", "gpu"), check) == [list(range(8))] * 4
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import torch

from lins import _core
from lins._planning import Layout, Mesh
from lins.errors import LinsRuntimeError

T = TypeVar("T")


def run(
    shape: Sequence[int],
    axes: Sequence[str],
    fn: Callable[[_core.LiveMesh], T],
    timeout: float = 60.0,
    device: str = "cpu",
) -> list[T]:
    """Calls fn(mesh) on every rank of a mesh, each in a thread of its own.

    Returns the results in the order of ranks. When a rank raises, the others are woken with an
    error and the first exception is raised here, with a note that names the rank.
    Collectives, and the whole run, end after `timeout` seconds. With device="cuda" all ranks share
    the current CUDA device, and what they send to each other goes by way of the host.
    """
    size = Mesh(list(shape), list(axes)).size
    worlds = _core.thread_worlds(size, timeout, device)
    results: list[Any] = [None] * size
    failures: list[tuple[float, int, BaseException]] = []

    def play(rank: int) -> None:
        if device != "cpu":
            # torch has one thread for all backwards on a device, where one rank's hooks would wait
            # for another's: each rank runs its backward itself.
            torch.autograd.set_multithreading_enabled(False)
        scope = _core.RankScope(worlds[rank])
        try:
            results[rank] = fn(_core.LiveMesh(worlds[rank], list(shape), list(axes)))
        except BaseException as e:
            failures.append((time.monotonic(), rank, e))
            worlds[rank].abort(f"rank {rank} raised {type(e).__name__}: {e}")
        finally:
            del scope

    threads = [
        threading.Thread(target=play, args=(r,), name=f"lins-rank-{r}", daemon=True)
        for r in range(size)
    ]
    deadline = time.monotonic() + timeout
    for t in threads:
        t.start()
    for t in threads:
        t.join(max(0.0, deadline - time.monotonic()))
    late = [r for r, t in enumerate(threads) if t.is_alive()]
    if late:
        worlds[0].abort(f"the run did not end within {timeout} s")
        for t in threads:
            t.join(5.0)
    if failures:
        _, rank, error = min(failures, key=lambda f: f[:2])
        error.add_note(f"raised by rank {rank} of {size}")
        raise error
    if late:
        raise LinsRuntimeError(f"ranks {late} did not end within {timeout} s")
    for w in worlds:
        w.shutdown()
    return results


class _Injection:
    """What the calling rank's matching collectives suffer, from now until remove()."""

    def __init__(
        self, kind: str, op: str | None, unit: str | None, role: str | None, what: float | str
    ) -> None:
        self._context = _core.RankContext.current()
        add = {"delay": self._context.add_delay, "failure": self._context.add_failure}[kind]
        self._id = add(op or "", unit or "", role or "", what)

    def remove(self) -> None:
        """Ends it."""
        self._context.remove(self._id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class delay(_Injection):
    """Holds back matching collectives of the calling rank by `seconds`, from now on.

    Ends with remove(), or with the block when used as a context manager. The caller goes on
    meanwhile: only the operation is late.
    """

    def __init__(
        self,
        op: str | None = None,
        unit: str | None = None,
        role: str | None = None,
        seconds: float = 0.01,
    ) -> None:
        super().__init__("delay", op, unit, role, seconds)


class failure(_Injection):
    """Makes matching collectives of the calling rank raise LinsError. Used like delay."""

    def __init__(
        self,
        op: str | None = None,
        unit: str | None = None,
        role: str | None = None,
        message: str = "injected failure",
    ) -> None:
        super().__init__("failure", op, unit, role, message)


# --- hypothesis strategies; hypothesis is needed only when they are called


def meshes(max_ranks: int = 8, max_axes: int = 2):
    """Strategy for abstract meshes of at most max_ranks ranks."""
    from hypothesis import strategies as st

    @st.composite
    def build(draw):
        ndim = draw(st.integers(1, max_axes))
        shape, room = [], max_ranks
        for _ in range(ndim):
            n = draw(st.integers(1, room))
            shape.append(n)
            room //= n
        return Mesh(shape, ["node", "gpu", "x", "y"][-ndim:] if ndim != 2 else ["node", "gpu"])

    return build()


def shapes(max_dims: int = 3, max_size: int = 9):
    """Strategy for tensor shapes, scalars and empty ones included."""
    from hypothesis import strategies as st

    return st.lists(st.integers(0, max_size), max_size=max_dims).map(tuple)


def layouts(
    mesh: Mesh,
    shape: Sequence[int],
    partial: Sequence[str] = ("sum",),
    flat: bool = True,
    owned: bool = True,
):
    """Strategy for layouts of a shape on a mesh.

    partial: reduction operations that may be pending; flat, owned: whether F and O may appear.
    """
    from hypothesis import strategies as st

    @st.composite
    def build(draw):
        pieces = draw(st.permutations(list(_sub_axes(mesh, draw))))
        kinds = ["R"] + (["S"] * 2 if len(shape) else []) + (["+"] if partial else [])
        kind = draw(st.sampled_from(["S"] + ["F"] * flat + ["O"] * owned))
        terms: dict[str, list[str]] = {}
        for piece in pieces:
            use = draw(st.sampled_from(kinds))
            if use == "S":
                key = f"S{draw(st.integers(0, len(shape) - 1))}" if kind == "S" else kind
            elif use == "+":
                key = f"+{draw(st.sampled_from(list(partial)))}"
            else:
                continue
            terms.setdefault(key, []).append(piece)
        out = []
        for key, axes in terms.items():
            owner = ""
            if key == "O":
                group = len(mesh.groups(",".join(axes))[0])
                owner = f"; {draw(st.integers(0, group - 1))}"
            out.append(f"{key}({','.join(axes)}{owner})")
        return Layout(" ".join(out) or "R", shape=list(shape), mesh=mesh)

    return build()


def _sub_axes(mesh: Mesh, draw):
    """Each axis whole, or cut in two."""
    from hypothesis import strategies as st

    for name, size in zip(mesh.axes, mesh.shape, strict=True):
        cuts = [k for k in range(2, size) if size % k == 0]
        cut = draw(st.sampled_from([None, *cuts]))
        if cut is None:
            yield name
        else:
            yield f"{name}:{cut}"
            yield f"{name}:{size // cut}@{cut}"
