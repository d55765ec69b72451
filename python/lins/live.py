"""Live meshes over torch.distributed."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from lins import _core
from lins.errors import LinsValueError

_worlds: dict[float, _core.World] = {}


def init_mesh(
    shape: Sequence[int] | None = None,
    axes: Sequence[str] = ("node", "gpu"),
    timeout: float = 600.0,
) -> _core.LiveMesh:
    """Joins all processes of the job in one mesh.

    Args:
        shape: ranks per axis, slowest link first; the product must be the number of processes.
            Default: from the environment that torchrun sets, (nodes, processes per node).
        axes: one name per dimension.
        timeout: seconds after which a collective that has not ended raises LinsError.

    Uses the process group that torch.distributed has, or initialises one from the environment
    (Gloo on CPUs, NCCL where CUDA is available); one process without such an environment is a
    world of its own. Collective.

    Raises:
        LinsError: on every rank, when ranks pass different meshes or the sizes do not multiply
            to the number of processes.
    """
    world = _world(timeout)
    if shape is None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
        if world.size % local:
            raise LinsValueError(
                f"{world.size} processes do not divide into nodes of LOCAL_WORLD_SIZE={local}: "
                "give the mesh's shape"
            )
        shape = (world.size // local, local)
        if len(axes) == 1:
            shape = (world.size,)
    return _core.LiveMesh(world, list(shape), list(axes))


def _world(timeout: float) -> _core.World:
    if timeout not in _worlds:
        _worlds[timeout] = _new_world(timeout)
    return _worlds[timeout]


def _new_world(timeout: float) -> _core.World:
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            return _core.single_world()
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return _core.single_world()
    store = dist.distributed_c10d._get_default_store()
    make = _core.nccl_world if "nccl" in dist.get_backend() else _core.gloo_world
    return make(store, rank, size, timeout)


@atexit.register
def _shutdown() -> None:
    # Groups are left in a fixed order, before torch takes down the store they met in.
    for world in _worlds.values():
        world.shutdown()
    _worlds.clear()
