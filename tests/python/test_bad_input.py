"""Wrong input is a LinsError that names it, on every rank, and never a hang."""

import time

import lins
import pytest
import torch

NAMES = ("node", "gpu")


def errors(fn, shape=(2, 2), timeout=10.0):
    """What fn(mesh) raises on each rank: (type, message). It must raise on all of them."""

    def check(mesh):
        try:
            fn(mesh)
        except lins.LinsError as e:
            return type(e), str(e)
        return None

    start = time.monotonic()
    got = lins.testing.run(shape, NAMES, check, timeout=timeout)
    assert all(got), f"ranks without an error: {[r for r, e in enumerate(got) if not e]}"
    assert time.monotonic() - start < timeout / 2, "found only at the time-out"
    return got


def expect(part, fn, shape=(2, 2), kind=ValueError):
    for error, message in errors(fn, shape):
        assert part in message
        assert issubclass(error, kind)


def rows(mesh):
    return lins.distribute_tensor(torch.arange(8.0).view(4, 2), mesh, "S0(gpu)")


def test_another_mesh_is_named_beside_the_own():
    other = lins.Layout("S0(gpu)", shape=(4, 2), mesh=lins.Mesh((4,), ("gpu",)))
    both = "Mesh(node=2, gpu=2) and Mesh(gpu=4)"
    expect(both, lambda m: rows(m).redistribute(other))

    def operands(mesh):
        live = lins._core.LiveMesh(mesh.world, [4], ["gpu"])
        return rows(mesh) + lins.ones((4, 2), mesh=live)

    expect(both, operands)


@pytest.mark.parametrize(
    "layout, part",
    [
        ("S0(x)", "unknown axis 'x': Mesh(node=2, gpu=2) has node, gpu"),
        ("S0(gpu) S1(gpu)", "axis 'gpu' is used twice"),
        ("S0(gpu,gpu)", "axis 'gpu' is used twice"),
        ("S0(gpu) +sum(gpu)", "axis 'gpu' is used twice"),
        ("S2(gpu)", "S2 is outside the tensor's dimensions: shape (4, 2) has 2"),
        ("S0(gpu:3)", "sub-axis gpu:3@1 does not divide axis 'gpu' of size 2"),
        ("O(gpu; 2)", "owner 2 is outside its group of 2"),
        ("+product(gpu)", "cannot turn S0(gpu) into +product(gpu)"),
        ([lins.Shard(2), lins.Replicate()], "Shard(2) is outside the tensor's dimensions"),
        ([lins.Shard(0)], "1 placements for Mesh(node=2, gpu=2): give one per axis, 2"),
    ],
    ids=str,
)
def test_layouts_that_do_not_exist(layout, part):
    expect(part, lambda m: rows(m).redistribute(layout))
    if "product" not in str(layout):  # legal for local tensors that are pending products
        whole = torch.ones(4, 2)
        expect(part, lambda m: lins.distribute_tensor(whole, m, layout))
        expect(part, lambda m: lins.DTensor.from_local(whole, m, layout))
        expect(part, lambda m: lins.zeros((4, 2), mesh=m, placements=layout))


def test_dimensions_out_of_range():
    legal = "is outside shape (4, 2): legal are -2 to 1"
    for reduce in ("sum", "mean", "max", "min", "argmax", "norm"):
        expect(f"{reduce}: dimension 2 {legal}", lambda m, r=reduce: getattr(rows(m), r)(dim=2))
    expect(f"dimension -3 {legal}", lambda m: rows(m).transpose(0, -3))


def test_shapes_that_disagree():
    def columns(mesh):
        lins.DTensor.from_local(torch.zeros(3, mesh.rank + 2), mesh, "S1(node,gpu)")

    expect("local shapes (3, 2), (3, 3), (3, 4), (3, 5) fit no tensor", columns)

    def dimensions(mesh):
        lins.DTensor.from_local(torch.zeros([2] * (1 + mesh.rank % 2)), mesh, "S0(gpu)")

    expect("ranks disagree about the number of dimensions", dimensions)

    def sources(mesh):
        lins.distribute_tensor(torch.zeros(4 + mesh.rank), mesh, "S0(gpu)", src_rank=0)

    expect("ranks disagree about the tensor to distribute", sources)

    def pending(mesh):  # told to be of unlike shapes: found by the first collective
        n = 4 + mesh.rank
        lins.DTensor.from_local(torch.ones(n), mesh, "+sum(gpu)", shape=(n,)).full_tensor()

    expect("ranks disagree", pending, (1, 2), RuntimeError)


def test_dtypes_that_disagree():
    def dtype(mesh):
        return torch.float64 if mesh.rank == 3 else torch.float32

    def local(mesh):
        lins.DTensor.from_local(torch.zeros(2, dtype=dtype(mesh)), mesh, "S0(gpu)")

    expect("dtype of local tensors: rank 0 has Float, rank 3 has Double", local)

    def source(mesh):
        lins.distribute_tensor(torch.zeros(2, dtype=dtype(mesh)), mesh, "R", src_rank=1)

    expect("ranks disagree about the tensor to distribute", source)

    def whole(mesh):
        lins.distribute_tensor(
            torch.zeros(2, dtype=dtype(mesh)), mesh, "S0(node,gpu)"
        ).full_tensor()

    expect("ranks disagree", whole, kind=RuntimeError)


def test_a_partial_of_another_operation():
    why = "cannot turn +sum(gpu) into +max(gpu): partial sum is not partial max"
    expect(why, lambda m: rows(m).redistribute("+sum(gpu)").redistribute("+max(gpu)"))

    def unlike(mesh):
        op = "max" if mesh.rank == 1 else "sum"
        lins.DTensor.from_local(torch.ones(4), mesh, f"+{op}(gpu)", shape=(4,)).full_tensor()

    expect("ranks disagree", unlike, (1, 2), RuntimeError)


def test_a_cap_too_small_names_the_least_that_works():
    def capped(mesh):
        src, dst = rows(mesh).layout, lins.Layout("R", shape=(4, 2), mesh=mesh)
        lins.plan_redistribution(src, dst, itemsize=4, max_peak_bytes=20)

    least = "max_peak_bytes=20 is too small for S0(gpu) -> R of (4, 2): the least possible is 48"
    expect(least, capped, (1, 2))


def test_meshes_that_disagree_or_do_not_fit_the_world():
    def names(mesh):
        lins._core.LiveMesh(mesh.world, [4], ["b" if mesh.rank == 3 else "a"])

    expect("ranks disagree about the mesh: rank 0 has Mesh(a=4), rank 3 has Mesh(b=4)", names)
    expect("the world has 4", lambda m: lins._core.LiveMesh(m.world, [3], ["a"]))
