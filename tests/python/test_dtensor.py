"""DTensor: distribution, redistribution between any layouts, partial values, and its errors."""

import random

import lins
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

AB = ("a", "b")


def run(shape, fn, axes=AB):
    return lins.testing.run(shape, axes, fn, timeout=20.0)


def arange(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).view(shape)


# --- placing


def test_rows_of_5_over_a_and_then_b():
    # Case 1: rows 0-1, 2, 3, 4.
    x = arange(5, 3)

    def check(mesh):
        d = lins.distribute_tensor(x, mesh, "S0(a,b)")
        assert torch.equal(d.redistribute("R").to_local(), x)
        assert torch.equal(d.full_tensor(), x)
        return d.to_local()

    parts = run((2, 2), check)
    assert [p.shape[0] for p in parts] == [2, 1, 1, 1]
    assert torch.equal(torch.cat(parts), x)


def test_uneven_rows_come_back_in_their_shape():
    # Case 2: rows 2, 2, 1, 0.
    x = arange(5, 10)

    def check(mesh):
        d = lins.distribute_tensor(x, mesh, "R").redistribute("S0(x)")
        assert d.redistribute("R").shape == (5, 10)
        assert torch.equal(d.full_tensor(), x)
        return tuple(d.to_local().shape)

    assert run((4,), check, ("x",)) == [(2, 10), (2, 10), (1, 10), (0, 10)]


def test_columns_are_contiguous():
    # Case 4: (3, 9) on 2 ranks: (3, 5) and (3, 4).
    def check(mesh):
        local = lins.distribute_tensor(arange(3, 9), mesh, "S1(x)").to_local()
        assert torch.equal(local, arange(3, 9).tensor_split([5], dim=1)[mesh.rank])
        return tuple(local.shape), local.stride(), local.is_contiguous()

    assert run((2,), check, ("x",))[1] == ((3, 4), (4, 1), True)


def test_values_are_those_of_src_rank():
    def check(mesh):
        x = arange(4, 2) + 100 * mesh.rank
        d = lins.distribute_tensor(x, mesh, "S0(a)", src_rank=2)
        assert x[0, 0] == 100 * mesh.rank  # the caller's tensor stays as it is
        return d.full_tensor()

    assert all(torch.equal(t, arange(4, 2) + 200) for t in run((2, 2), check))

    def bad(mesh):
        for src in (-1, 4):
            with pytest.raises(lins.LinsError, match=f"src_rank {src} is outside Mesh"):
                lins.distribute_tensor(arange(4), mesh, "R", src_rank=src)

    run((2, 2), bad)


def test_the_callers_tensor_is_not_aliased():
    def check(mesh):
        x = arange(4, 4)
        d = lins.distribute_tensor(x, mesh, "R")
        x.zero_()
        assert torch.equal(d.to_local(), arange(4, 4))
        assert lins.distribute_tensor(arange(4).requires_grad_(), mesh, "R").to_local().is_leaf

    run((1, 2), check)


def test_properties():
    def check(mesh):
        d = lins.distribute_tensor(
            arange(4, 2, dtype=torch.int64), mesh, [lins.Shard(0), lins.Replicate()]
        )
        assert (d.shape, d.dtype, str(d.layout)) == ((4, 2), torch.int64, "S0(a)")
        assert d.mesh.axes == mesh.axes
        assert d.layout == lins.Layout("S0(a)", shape=(4, 2), mesh=mesh)
        assert d.placements == [lins.Shard(0), lins.Replicate()]
        same = lins.distribute_tensor(arange(4, 2), mesh, d.layout)
        assert same.layout == d.layout
        return repr(d)

    text = run((2, 2), check)[3]
    for part in ("S0(a)", "shape=(4, 2)", "torch.int64", "Mesh(a=2, b=2)", "rank 3"):
        assert part in text


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
def test_any_dtype_moves(dtype):
    x = (arange(6, 5) % 7).to(dtype)

    def check(mesh):
        d = lins.distribute_tensor(x, mesh, "S0(a,b)")
        for layout in ("S1(b) S0(a)", "F(b)", "O(a; 1)", "R"):
            d = d.redistribute(layout)
            assert d.dtype == dtype
        return d.to_local()

    assert all(torch.equal(t, x) for t in run((2, 2), check))


def test_a_rank_without_rows_joins_each_collective():
    # Case 9: rows 3, 3, 3, 3, 3, 3, 2, 0.
    x = arange(20, 2)

    def check(mesh):
        d = lins.distribute_tensor(x, mesh, "S0(x)")
        with lins.trace() as t:
            assert torch.equal(d.redistribute("R").to_local(), x)
            assert torch.equal(d.redistribute("S1(x)").full_tensor(), x)
            assert d.norm().item() == pytest.approx(x.norm().item())
        return len(d.to_local()), [r.op for r in t.records]

    rows, kinds = zip(*run((8,), check, ("x",)), strict=True)
    assert rows == (3, 3, 3, 3, 3, 3, 2, 0)
    assert kinds == (["all_gather", "all_to_all", "all_gather", "all_reduce"],) * 8


# --- from_local


def test_rows_of_all_ranks_are_counted():
    # Case 6: 3, 3, 3, 1 make 10.
    def check(mesh):
        rows = (3, 3, 3, 1)[mesh.rank]
        d = lins.DTensor.from_local(torch.full((rows, 2), float(mesh.rank)), mesh, "S0(x)")
        return d.shape, d.full_tensor()[:, 0].tolist()

    assert run((4,), check, ("x",)) == [((10, 2), [0.0] * 3 + [1.0] * 3 + [2.0] * 3 + [3.0])] * 4


def test_inference_over_two_axes_and_placements():
    x = arange(5, 6)

    def check(mesh):
        for layout in ("S0(b,a)", "S0(a) S1(b)", "S1(b)", [lins.Shard(0), lins.Shard(0)], "R"):
            local = lins.distribute_tensor(x, mesh, layout).to_local()
            d = lins.DTensor.from_local(local, mesh, layout)
            assert d.shape == (5, 6)
            assert torch.equal(d.full_tensor(), x)

    run((2, 2), check)


def test_local_shapes_that_fit_nothing_are_an_error_on_all_ranks():
    # Case 5: columns 2, 3, 4, 5.
    def columns(mesh):
        with pytest.raises(
            lins.LinsError, match=r"\(3, 2\), \(3, 3\), \(3, 4\), \(3, 5\).*\(3, 14\)"
        ):
            lins.DTensor.from_local(torch.zeros(3, mesh.rank + 2), mesh, "S1(x)")
        # A shape that does not fit either.
        if mesh.rank != 2:  # 14 columns are 4, 4, 4, 2: rank 2 would be content
            with pytest.raises(
                lins.LinsError, match=rf"\(3, {mesh.rank + 2}\) on rank {mesh.rank}"
            ):
                lins.DTensor.from_local(torch.zeros(3, mesh.rank + 2), mesh, "S1(x)", shape=(3, 14))

        fits = torch.full((3, (4, 4, 4, 2)[mesh.rank]), float(mesh.rank))
        whole = lins.DTensor.from_local(fits, mesh, "S1(x)", shape=(3, 14)).full_tensor()
        assert whole[0].tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4 + [3.0] * 2

    def replicas(mesh):
        with pytest.raises(lins.LinsError, match="fit no tensor"):
            lins.DTensor.from_local(torch.zeros(3 + (mesh.rank == 1)), mesh, "R")

    def dimensions(mesh):
        with pytest.raises(lins.LinsError, match="number of dimensions"):
            lins.DTensor.from_local(torch.zeros([2] * (1 + mesh.rank % 2)), mesh, "S0(x)")

    def dtypes(mesh):
        dtype = torch.float64 if mesh.rank == 3 else torch.float32
        with pytest.raises(lins.LinsError, match=r"dtype.*Double"):
            lins.DTensor.from_local(torch.zeros(2, dtype=dtype), mesh, "S0(x)")

    def flat(mesh):
        with pytest.raises(lins.LinsError, match=r"cannot be worked out for F\(x.*give it"):
            lins.DTensor.from_local(torch.zeros(2), mesh, "F(x)")

    for check in (columns, replicas, dimensions, dtypes, flat):
        run((4,), check, ("x",))


def test_a_local_tensor_that_is_not_contiguous():
    x = arange(4, 6)

    def check(mesh):
        local = x[2 * mesh.rank : 2 * mesh.rank + 2].t().contiguous().t()
        return lins.DTensor.from_local(local, mesh, "S0(x)").full_tensor()

    assert all(torch.equal(t, x) for t in run((2,), check, ("x",)))


# --- redistribution


def test_one_all_to_all_moves_a_dimension_between_axes():
    # Case 3: (S1, S1) -> (S1, S2) of a 3-D tensor.
    x = arange(4, 4, 4)

    def check(mesh):
        d = lins.distribute_tensor(x, mesh, "S1(a,b)")
        with lins.trace() as t:
            d = d.redistribute("S1(a) S2(b)")
        assert torch.equal(d.full_tensor(), x)
        return [(r.op, r.axes) for r in t.records]

    assert run((2, 2), check) == [[("all_to_all", "b")]] * 4


def test_embedding_rows_keep_their_order():
    # Case 11.
    x = arange(4, 1)

    def check(mesh):
        for layout in ("S0(a,b)", "S0(b,a)"):
            d = lins.distribute_tensor(x, mesh, layout)
            assert torch.equal(d.full_tensor(), x)
            assert torch.equal(d.redistribute("S0(a)").full_tensor(), x)

    run((2, 2), check)


def test_another_mesh_is_an_error_that_names_both():
    # Case 12.
    def check(mesh):
        d = lins.distribute_tensor(arange(8), mesh, "S0(a)")
        other = lins.Mesh((4, 1), ("a", "b"))
        with pytest.raises(lins.LinsError, match=r"Mesh\(a=2, b=2\).*Mesh\(a=4, b=1\)"):
            d.redistribute(lins.Layout("S0(a)", shape=(8,), mesh=other))
        with pytest.raises(lins.LinsError, match=r"\(8\)|\(8,\)"):
            d.redistribute(lins.Layout("R", shape=(9,), mesh=lins.Mesh((2, 2), AB)))
        with pytest.raises(lins.LinsError, match="c"):
            d.redistribute("S0(c)")
        with pytest.raises(lins.LinsError, match="1"):
            d.redistribute("S1(a)")

    run((2, 2), check)


@pytest.mark.parametrize("op", ["sum", "avg", "min", "max", "product"])
@pytest.mark.parametrize("dst", ["R", "S0(a)", "S0(b,a)", "F(a,b)", "O(b; 1)", "S1(b)"])
def test_partial_values_reduce(op, dst):
    parts = torch.stack([(arange(4, 4) * (r + 3)) % 5 - 1 for r in range(4)])
    want = {
        "sum": parts.sum(0),
        "avg": parts.mean(0),
        "min": parts.amin(0),
        "max": parts.amax(0),
        "product": parts.prod(0),
    }[op]

    def check(mesh):
        d = lins.DTensor.from_local(parts[mesh.rank], mesh, f"+{op}(a,b)")
        assert d.shape == (4, 4)
        return d.redistribute(dst).full_tensor()

    assert all(torch.equal(t, want) for t in run((2, 2), check))


def test_replicated_to_partial():
    # Case 18.
    x = arange(4, 4)

    def check(mesh):
        d = lins.distribute_tensor(x, mesh, "R")
        assert torch.equal(d.redistribute("+avg(a)").to_local(), x)
        for op in ("sum", "avg", "min", "max"):
            assert torch.equal(d.redistribute(f"+{op}(a,b)").full_tensor(), x)
        with pytest.raises(lins.LinsError, match=r"R.*\+product\(a\)"):
            d.redistribute("+product(a)")
        with pytest.raises(lins.LinsError, match=r"\+max.*\+sum|different"):
            d.redistribute("+max(a)").redistribute("+sum(a)")

    run((2, 2), check)


def test_all_ranks_get_the_same_bits_of_a_partial_sum():
    # As case 19 (test_dtensor_ops.py), on six ranks: (partial, partial, replicate) -> replicate.
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(6, 33, generator=generator)

    def check(mesh):
        return lins.DTensor.from_local(parts[mesh.rank], mesh, "+sum(a,b)").full_tensor()

    results = run((3, 2, 1), check, ("a", "b", "c"))
    assert all(torch.equal(t, results[0]) for t in results)
    torch.testing.assert_close(results[0], parts.sum(0))


def test_layouts_in_a_row_on_one_mesh():
    """Random walks through layouts: values stay, whatever the path."""
    for seed, shape in enumerate([(), (1,), (5,), (4, 3), (0, 4), (2, 7, 3)]):
        choice = random.Random(seed)
        mesh = lins.Mesh((2, 3), AB)
        path = []
        for _ in range(12):
            layout = _random_layout(choice, mesh, shape)
            path.append(layout)
        x = arange(*shape)

        def check(live, path=path, x=x):
            d = lins.distribute_tensor(x, live, path[0])
            for layout in path[1:]:
                d = d.redistribute(layout)
                assert d.layout == layout
                assert tuple(d.to_local().shape) == tuple(layout.local_shape(live.rank))
                assert d.to_local().is_contiguous()
            return d.full_tensor()

        for got in run((2, 3), check):
            torch.testing.assert_close(got, x, rtol=1e-6, atol=1e-5)


def _random_layout(choice, mesh, shape):
    kinds = ["R", *(f"S{d}" for d in range(len(shape)))]
    style = choice.choice(["S", "S", "F", "O"])
    terms = {}
    for axis in choice.sample(list(mesh.axes), len(mesh.axes)):
        kind = choice.choice([*kinds, "+sum"])
        if kind.startswith("S") and style != "S":
            kind = style
        if kind != "R":
            terms.setdefault(kind, []).append(axis)
    text = []
    for kind, axes in terms.items():
        owner = f"; {choice.randrange(len(mesh.groups(','.join(axes))[0]))}" if kind == "O" else ""
        text.append(f"{kind}({','.join(axes)}{owner})")
    return lins.Layout(" ".join(text) or "R", shape=shape, mesh=mesh)


@st.composite
def _walks(draw):
    mesh = draw(lins.testing.meshes(max_ranks=6))
    shape = draw(lins.testing.shapes(max_dims=3, max_size=6))
    steps = draw(st.lists(lins.testing.layouts(mesh, shape), min_size=2, max_size=4))
    return mesh, shape, steps


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(_walks())
def test_any_layout_reaches_any_other(walk):
    mesh, shape, steps = walk
    x = arange(*shape, dtype=torch.float64)

    def check(live):
        d = lins.distribute_tensor(x, live, str(steps[0]))
        for layout in steps[1:]:
            d = d.redistribute(str(layout))
            assert tuple(d.to_local().shape) == tuple(layout.local_shape(live.rank))
        return d.full_tensor()

    for got in run(mesh.shape, check, mesh.axes):
        torch.testing.assert_close(got, x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("target", ["R", "S1(gpu)", "S0(gpu)", "F(gpu,node)"])
def test_a_redistribution_in_flight_ends_like_one_that_is_waited_for(target):
    whole = torch.arange(35.0).view(7, 5)

    def play(mesh):
        x = lins.distribute_tensor(whole, mesh, "S0(node) +sum(gpu)").to(torch.float64)
        pending = [x.redistribute(target, async_op=True) for _ in range(3)]
        meanwhile = x.redistribute(target)
        results = [p.wait() for p in pending]
        assert all(p.done() for p in pending)
        assert all(r.layout == meanwhile.layout for r in results)
        return all(torch.equal(r.to_local(), meanwhile.to_local()) for r in results)

    assert all(lins.testing.run((2, 2), ("node", "gpu"), play))


def test_a_redistribution_in_flight_is_differentiable():
    def play(mesh):
        grads = []
        for async_op in (False, True):
            x = lins.distribute_tensor(torch.arange(8.0), mesh, "S0(gpu)").requires_grad_()
            y = x.redistribute("R", async_op=async_op)
            y = y.wait() if async_op else y
            (y.to_local() * torch.arange(8.0)).sum().backward()
            grads.append(x.to_local().grad)
        return torch.equal(*grads)

    assert all(lins.testing.run((1, 2), ("node", "gpu"), play))


def test_a_failure_in_flight_is_raised_by_wait():
    def play(mesh):
        x = lins.distribute_tensor(torch.arange(8.0), mesh, "S0(gpu)")
        lins._core.RankContext.current().add_failure("all_gather", "", "", "lost")
        pending = x.redistribute("R", async_op=True)
        for _ in range(2):
            with pytest.raises(lins.LinsError, match=r"all_gather failed .*lost"):
                pending.wait()
        return pending.done()

    assert all(lins.testing.run((1, 2), ("node", "gpu"), play))


def test_no_communication_names_the_line_that_starts_one():
    def play(mesh):
        x = lins.distribute_tensor(torch.ones(4, 4), mesh, "S0(gpu) +sum(node)")
        with lins.no_communication(), pytest.raises(lins.LinsError, match="async_op=True"):
            x.redistribute("R", async_op=True)
        return True

    assert all(lins.testing.run((2, 2), ("node", "gpu"), play))
