"""DTensors of lins to and from those of torch.distributed.tensor."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lins import _core
from lins._planning import Layout, Partial, Replicate, Shard
from lins.errors import LinsValueError
from lins.live import init_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor as TorchDTensor
    from torch.distributed.tensor import Placement as TorchPlacement

# The DeviceMesh of each lins mesh that went to torch: making one creates process groups.
_device_meshes: dict[tuple[tuple[int, ...], tuple[str, ...], str], DeviceMesh] = {}
_lock = threading.Lock()

_TORCH_OPS = ("sum", "avg", "product", "max", "min", "band", "bor", "bxor")


def to_torch(x: _core.DTensor, device_mesh: DeviceMesh | None = None) -> TorchDTensor:
    """The same local tensor as a torch.distributed.tensor.DTensor. Differentiable.

    device_mesh: of the same shape as x.mesh, all ranks in order; without one it is made on the
    first call (collective over the job) and kept. An order of splits other than the mesh's
    becomes torch's _StridedShard.

    Raises LinsError where torch has no equivalent: F, O, parts of axes, three or more splits of a
    dimension out of order, and uneven shards out of order.
    """
    from torch.distributed.tensor import DTensor as TorchDTensor

    placements = _torch_placements(x.layout)
    if device_mesh is None:
        device_mesh = _device_mesh(x.mesh, x.device.type)
    elif tuple(device_mesh.shape) != x.mesh.shape:
        raise LinsValueError(
            f"device mesh of shape {tuple(device_mesh.shape)} for {x.mesh}: give one of shape "
            f"{x.mesh.shape}"
        )
    stride, step = [], 1
    for size in reversed(x.shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return TorchDTensor.from_local(
        x.to_local(),
        device_mesh,
        placements,
        run_check=False,
        shape=_size(x.shape),
        stride=tuple(stride),
    )


def from_torch(x: TorchDTensor, mesh: _core.LiveMesh | None = None) -> _core.DTensor:
    """A torch.distributed.tensor.DTensor, such as a parameter sharded by FSDP2, as lins' own.

    Shares the local tensor; differentiable. mesh: a live mesh of the device mesh's shape; without
    one it is made (collective), its axes named as the device mesh's dimensions, or "gpu",
    ("node", "gpu"), ("axis0", ...) where those have no names.

    Raises LinsError for device meshes that are not all ranks of the job in order, for placements
    that lins has none for, and for uneven strided shards.
    """
    device_mesh = x.device_mesh
    shape = tuple(device_mesh.shape)
    ranks = device_mesh.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        raise LinsValueError(f"the device mesh has ranks {ranks}: only 0, 1, 2, ... in order fit")
    if mesh is None:
        mesh = init_mesh(shape, device_mesh.mesh_dim_names or _default_names(len(shape)))
    elif mesh.shape != shape:
        raise LinsValueError(f"{mesh} for a device mesh of shape {shape}: give one of its shape")
    layout = _layout(x.placements, tuple(x.shape), mesh)
    local = x.to_local()
    if hasattr(local, "wait"):
        local = local.wait()
    return _core.DTensor.from_local(local, mesh, layout)


def _size(shape: Sequence[int]):
    import torch

    return torch.Size(shape)


def _default_names(ndim: int) -> tuple[str, ...]:
    if ndim == 1:
        return ("gpu",)
    return ("node", "gpu") if ndim == 2 else tuple(f"axis{i}" for i in range(ndim))


def _device_mesh(mesh: _core.LiveMesh, device: str) -> DeviceMesh:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized() or mesh.backend == "threads":
        raise LinsValueError(
            "torch's DTensor needs processes that have met in torch.distributed: start them with "
            "torchrun and make the mesh with lins.init_mesh"
        )
    key = (mesh.shape, mesh.axes, device)
    with _lock:
        if key not in _device_meshes:
            _device_meshes[key] = init_device_mesh(device, mesh.shape, mesh_dim_names=mesh.axes)
        return _device_meshes[key]


def _torch_placements(layout: Layout) -> list[TorchPlacement]:
    """One torch placement per mesh axis; LinsError where there is none."""
    from torch.distributed.tensor import Partial as TorchPartial
    from torch.distributed.tensor import Replicate as TorchReplicate
    from torch.distributed.tensor import Shard as TorchShard
    from torch.distributed.tensor.placement_types import _StridedShard

    def refuse(why: str) -> LinsValueError:
        return LinsValueError(
            f"layout {layout} of {layout.shape} on {layout.mesh} has no equivalent in torch: "
            f"{why}. Redistribute it first"
        )

    axes, sizes = layout.mesh.axes, layout.mesh.shape
    out: list[TorchPlacement] = [TorchReplicate()] * len(axes)
    for kind, term_axes in _terms(layout):
        if kind in ("F", "O"):
            raise refuse("F and O are not placements of single axes")
        if any(":" in a for a in term_axes):
            raise refuse("it names a part of an axis")
        order = [axes.index(a) for a in term_axes]
        if kind.startswith("+"):
            for i in order:
                out[i] = TorchPartial(kind[1:])
            continue
        dim = int(kind[1:])
        count = 1
        for place, i in enumerate(order):
            # As many shards as axes after this one in the mesh have made before it.
            factor = 1
            for j in order[:place]:
                factor *= sizes[j] if j > i else 1
            out[i] = _StridedShard(dim, split_factor=factor) if factor > 1 else TorchShard(dim)
            count *= sizes[i]
        if order != sorted(order):
            if len(order) > 2:
                raise refuse("three or more axes split one dimension out of the mesh's order")
            if layout.shape[dim] % count:
                raise refuse(
                    f"a strided shard of {layout.shape[dim]} elements does not divide by {count}"
                )
    return out


def _terms(layout: Layout) -> list[tuple[str, list[str]]]:
    """[("S0", ["gpu", "node"]), ("+sum", ["x"])] of a layout's notation."""
    out = []
    for term in str(layout).replace("; ", ";").split(" "):
        if term != "R":
            kind, _, rest = term.partition("(")
            out.append((kind, rest.rstrip(")").split(";")[0].split(",")))
    return out


def _layout(
    placements: Sequence[TorchPlacement], shape: tuple[int, ...], mesh: _core.LiveMesh
) -> Layout:
    """The layout of a list of torch's placements."""
    from torch.distributed.tensor.placement_types import _StridedShard

    names = [str(p) for p in placements]
    if not any(isinstance(p, _StridedShard) for p in placements):
        return Layout([_placement(p, names) for p in placements], shape=shape, mesh=mesh)
    order: dict[int, list[int]] = {}
    partial: list[str] = []
    for i, p in enumerate(placements):
        if isinstance(p, _StridedShard) or p.is_shard():
            order.setdefault(p.dim % max(len(shape), 1), []).append(i)
        elif p.is_partial():
            partial.append(f"+{_placement(p, names).op}({mesh.axes[i]})")
    terms = []
    for dim, used in order.items():
        strided = [i for i in used if isinstance(placements[i], _StridedShard)]
        major_first = used
        if strided:
            factor = placements[strided[0]].split_factor
            if len(used) != 2 or used[0] != strided[0] or mesh.shape[used[1]] != factor:
                raise LinsValueError(
                    f"placements {names} on {mesh}: lins reads a strided shard only as the first "
                    "of two splits of a dimension, with the other's size as its factor"
                )
            count = mesh.shape[used[0]] * mesh.shape[used[1]]
            if shape[dim] % count:
                raise LinsValueError(
                    f"placements {names} of shape {shape}: strided shards of {shape[dim]} elements "
                    f"over {count} ranks are uneven, and lins cuts uneven ones otherwise"
                )
            major_first = [used[1], used[0]]
        terms.append(f"S{dim}({','.join(mesh.axes[i] for i in major_first)})")
    return Layout(" ".join(terms + partial), shape=shape, mesh=mesh)


def _placement(p: TorchPlacement, names: list[str]) -> Shard | Replicate | Partial:
    from torch.distributed.tensor import Partial as TorchPartial
    from torch.distributed.tensor import Shard as TorchShard

    if p.is_replicate():
        return Replicate()
    if type(p) is TorchShard:
        return Shard(p.dim)
    if type(p) is TorchPartial and p.reduce_op in _TORCH_OPS:
        return Partial(p.reduce_op)
    raise LinsValueError(
        f"placement {p} of {names} has no equivalent in lins: Replicate, Shard, _StridedShard and "
        f"Partial with {', '.join(_TORCH_OPS)} do"
    )


_core.DTensor.to_torch = to_torch
_core.DTensor.from_torch = staticmethod(from_torch)
