"""One process of test_torch_interop.py: rank, processes, port."""

import sys

import lins
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard


def round_trips(mesh, device_mesh):
    node, gpu = mesh.shape
    full = torch.arange(48.0).reshape(8, 6)
    cases = {
        "R": [Replicate(), Replicate()],
        "S0(gpu)": [Replicate(), Shard(0)],
        "S0(node,gpu)": [Shard(0), Shard(0)],
        "S0(node) S1(gpu)": [Shard(0), Shard(1)],
        "S1(gpu) +sum(node)": [Partial("sum"), Shard(1)],
        "+avg(node)": [Partial("avg"), Replicate()],
        "S0(gpu,node)": [_StridedShard(0, split_factor=gpu) if gpu > 1 else Shard(0), Shard(0)],
    }
    for layout, placements in cases.items():
        if node == 1 and layout in ("S1(gpu) +sum(node)", "+avg(node)", "S0(gpu,node)"):
            continue
        x = lins.distribute_tensor(full, mesh, layout)
        t = x.to_torch()
        assert list(t.placements) == placements, (layout, t.placements)
        assert t.shape == full.shape and torch.equal(t.full_tensor(), full), layout
        back = lins.DTensor.from_torch(t, mesh)
        assert back.layout == x.layout and back.equal(x), layout
        assert back.to_local().data_ptr() == x.to_local().data_ptr()
    uneven = distribute_tensor(torch.arange(15.0).reshape(5, 3), device_mesh, [Shard(0), Shard(0)])
    x = lins.DTensor.from_torch(uneven, mesh)
    assert str(x.layout) == "S0(node,gpu)" and torch.equal(x.full_tensor(), uneven.full_tensor())
    assert torch.equal(x.to_torch(device_mesh).full_tensor(), uneven.full_tensor())


def gradients(mesh):
    x = lins.distribute_tensor(torch.arange(8.0), mesh, "S0(node,gpu)").requires_grad_()
    (x.to_torch().full_tensor() ** 2).sum().backward()
    assert torch.equal(x.grad.full_tensor(), 2 * torch.arange(8.0))


def parameters_of_fsdp2(mesh, device_mesh):
    for on in (device_mesh, device_mesh["gpu"] if mesh.shape[0] == 1 else None):
        if on is None:
            continue
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3, bias=False))
        want = {n: p.detach().clone() for n, p in model.named_parameters()}
        fully_shard(model, mesh=on)
        for name, p in model.named_parameters():
            assert isinstance(p, DTensor)
            x = lins.DTensor.from_torch(p)
            assert torch.equal(x.full_tensor(), want[name]), name
            assert str(x.layout) == "S0(gpu)", x.layout
            assert torch.equal(x.detach().to_torch().full_tensor(), want[name])
        data = torch.ones(2, 6)
        model(data).sum().backward()
        for name, p in model.named_parameters():
            assert lins.DTensor.from_torch(p.grad).shape == want[name].shape


def refusals(mesh, device_mesh):
    strided = [_StridedShard(0, split_factor=mesh.shape[1]), Shard(0)]
    if mesh.shape[0] > 1:
        local = torch.ones(2, 3)
        t = DTensor.from_local(
            local, device_mesh, strided, run_check=False, shape=(9, 3), stride=(3, 1)
        )
        try:
            lins.DTensor.from_torch(t, mesh)
        except lins.LinsError as e:
            assert "uneven" in str(e), e
        else:
            raise AssertionError("an uneven strided shard passed")
    other = lins.init_mesh((mesh.size,), ("all",))
    for call in (
        lambda: lins.DTensor.from_torch(
            distribute_tensor(torch.ones(4), device_mesh, [Replicate()] * 2), other
        ),
        lambda: lins.ones(4, mesh=other).to_torch(device_mesh),
    ):
        try:
            call()
        except lins.LinsError as e:
            assert "shape" in str(e), e
        else:
            raise AssertionError("unlike meshes passed")


def main():
    rank, processes, port = (int(a) for a in sys.argv[1:])
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes
    )
    shape = (processes // 2, 2)
    mesh = lins.init_mesh(shape, ("node", "gpu"), timeout=60)
    device_mesh = init_device_mesh("cpu", shape, mesh_dim_names=("node", "gpu"))
    round_trips(mesh, device_mesh)
    gradients(mesh)
    parameters_of_fsdp2(mesh, device_mesh)
    refusals(mesh, device_mesh)
    print("all good")
    dist.destroy_process_group()


main()
