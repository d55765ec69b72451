"""Arithmetic of DTensor equals that of the whole tensors, under every layout."""

import copy
import operator
import pickle

import dtensor_worlds as worlds
import lins
import pytest
import torch
from lins.testing import run

AXES = ("node", "gpu")


def on(mesh, fn):
    return run(mesh, AXES, fn)


def failures(mesh, check):
    """Runs check(mesh) on every rank: it returns the list of what went wrong."""
    bad = [b for rank in on(mesh, check) for b in rank]
    assert not bad, bad[:5]


# --- known cases 14 to 19


def test_case_14_sum_of_split_arange_plus_ten_is_55():
    def f(m):
        x = lins.distribute_tensor(torch.arange(10), m, "S0(gpu)")
        y = x.sum()
        assert str(y.layout) == "+sum(gpu)"
        return (y + 10).full_tensor().item()

    assert on((1, 2), f) == [55, 55]


def test_case_15_norm_of_a_partial_is_of_its_sum():
    def f(m):
        mine = torch.tensor([[1.0, 3.0], [2.0, 1.0]])[m.rank]
        return lins.DTensor.from_local(mine, m, "+sum(gpu)").norm().full_tensor().item()

    assert on((1, 2), f) == [5.0, 5.0]


def test_case_16_mean_of_split_arange_is_five_and_a_half():
    def f(m):
        x = torch.arange(12.0).reshape(3, 4)
        return lins.distribute_tensor(x, m, "S0(gpu)").mean().full_tensor().item()

    assert on((1, 2), f) == [5.5, 5.5]


def test_case_17_argmax_is_an_index_of_the_whole_tensor():
    def f(m):
        x = torch.tensor([10, 5, 3, 8])
        return lins.distribute_tensor(x, m, "S0(gpu)").argmax().full_tensor().item()

    assert on((1, 2), f) == [0, 0]


def test_case_18_replicated_to_average_is_the_identity_and_to_product_raises():
    def f(m):
        x = lins.distribute_tensor(torch.tensor([1.0, 2.0]), m, "R")
        assert x.redistribute("+avg(gpu)").to_local().tolist() == [1.0, 2.0]
        assert x.redistribute("+avg(gpu)").full_tensor().tolist() == [1.0, 2.0]
        with pytest.raises(lins.LinsError, match="product"):
            x.redistribute("+product(gpu)")

    on((1, 2), f)


def test_case_19_two_partial_axes_reduce_to_the_same_bits_on_every_rank():
    def f(m):
        g = torch.Generator().manual_seed(m.rank)
        x = lins.DTensor.from_local(torch.randn(257, generator=g), m, "+sum(a) +sum(b)")
        return x.full_tensor()

    got = run((8, 5, 1), ("a", "b", "c"), f)
    assert all(torch.equal(got[0], g) for g in got)


# --- exhaustive sweeps


@pytest.mark.parametrize("mesh", [m for m, _ in worlds.MESHES])
def test_elementwise_of_every_pair_of_layouts_is_exact_on_integers(mesh):
    def f(m):
        bad = []
        for shape in worlds.shapes():
            a, b = worlds.integers(shape), worlds.integers(shape, 1)
            names = worlds.sums(worlds.layouts(shape))
            x = {n: lins.distribute_tensor(a, m, n) for n in names}
            y = {n: lins.distribute_tensor(b, m, n) for n in names}
            want = {op: op(a, b) for op in (operator.add, operator.mul, operator.lt)}
            for i, (p, q) in enumerate(worlds.pairs(names)):
                op = list(want)[i % 3]
                if not worlds.same(op(x[p], y[q]), want[op]):
                    bad.append((shape, op.__name__, p, q))
        return bad

    failures(mesh, f)


@pytest.mark.parametrize("mesh", [m for m, _ in worlds.MESHES])
def test_scalars_and_unary_operations_are_exact_under_every_layout(mesh):
    cases = {
        "+": lambda t: t + 3,
        "r-": lambda t: 3 - t,
        "*": lambda t: t * 4,
        "/": lambda t: t / 2,
        "-": lambda t: -t,
        "abs": abs,
        "<": lambda t: t < 2,
        "r>=": lambda t: t <= 2,
        "==": lambda t: t == 1,
    }

    def f(m):
        bad = []
        for shape in worlds.shapes():
            a = worlds.integers(shape)
            for name in worlds.sums(worlds.layouts(shape)):
                x = lins.distribute_tensor(a, m, name)
                bad += [(shape, name, c) for c, g in cases.items() if not worlds.same(g(x), g(a))]
        return bad

    failures(mesh, f)


def reductions():
    for dim in (None, 0, 1, -1, (0, 1)):
        for keepdim in (False, True):
            yield dim, keepdim


@pytest.mark.parametrize("mesh", [m for m, _ in worlds.MESHES])
def test_reductions_are_exact_under_every_layout(mesh):
    def plain(t, op, dim, keepdim):
        dims = tuple(range(t.dim())) if dim is None else dim
        if op == "argmax":
            return t.argmax(dim=dim, keepdim=keepdim)
        fn = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[op]
        return fn(t, dim=dims, keepdim=keepdim)

    def f(m):
        bad = []
        for shape in worlds.shapes():
            a = worlds.integers(shape)
            for name in worlds.sums(worlds.layouts(shape)):
                x = lins.distribute_tensor(a, m, name)
                for dim, keepdim in reductions():
                    if len(shape) == 1 and dim not in (None, 0, -1):
                        continue
                    for op in ("sum", "max", "min", "argmax"):
                        if op == "argmax" and isinstance(dim, tuple):
                            continue
                        try:
                            want = plain(a, op, dim, keepdim)
                        except (RuntimeError, IndexError):
                            with pytest.raises(lins.LinsError, match="no elements"):
                                getattr(x, op)(dim=dim, keepdim=keepdim)
                            continue
                        if not worlds.same(getattr(x, op)(dim=dim, keepdim=keepdim), want):
                            bad.append((shape, name, op, dim, keepdim))
        return bad

    failures(mesh, f)


@pytest.mark.parametrize("mesh", [(2, 3), (1, 4)])
def test_means_and_norms_equal_the_plain_ones(mesh):
    def f(m):
        bad = []
        for shape in [(0,), (1,), (5,), (3, 5), (8, 2), (0, 3), (5, 1)]:
            a = worlds.integers(shape).double()
            for name in worlds.layouts(shape):
                x = lins.distribute_tensor(a, m, name)
                for dim, keepdim in reductions():
                    if len(shape) == 1 and dim not in (None, 0, -1):
                        continue
                    dims = tuple(range(a.dim())) if dim is None else dim
                    checks = {
                        "mean": (x.mean(dim, keepdim), a.mean(dims, keepdim)),
                        "1": (x.norm(1, dim, keepdim), a.abs().sum(dims, keepdim)),
                        "2": (x.norm(2, dim, keepdim), (a * a).sum(dims, keepdim).sqrt()),
                    }
                    if a.numel():
                        inf = float("inf")
                        checks["inf"] = (x.norm(inf, dim, keepdim), a.abs().amax(dims, keepdim))
                    for what, (got, want) in checks.items():
                        full = got.full_tensor()
                        if full.shape != want.shape or not torch.allclose(
                            full, want, rtol=1e-12, atol=0, equal_nan=True
                        ):
                            bad.append((shape, name, what, dim, keepdim))
        return bad

    failures(mesh, f)


@pytest.mark.parametrize("mesh", [m for m, _ in worlds.MESHES])
def test_matmul_of_every_pair_of_layouts_is_exact(mesh):
    def f(m):
        bad = []
        for rows, inner, columns in [(3, 5, 2), (4, 4, 4), (1, 2, 8), (2, 0, 3), (5, 1, 1)]:
            a, b = worlds.integers((rows, inner)), worlds.integers((inner, columns), 1)
            for p, q in worlds.pairs(worlds.sums(worlds.MATRIX)):
                got = lins.distribute_tensor(a, m, p) @ lins.distribute_tensor(b, m, q)
                if not worlds.same(got, a @ b):
                    bad.append((rows, inner, columns, p, q))
        return bad

    failures(mesh, f)


def test_shapes_broadcast_under_every_pair_of_layouts():
    def f(m):
        bad = []
        for left, right in [
            ((5, 3), (3,)),
            ((5, 3), (1, 3)),
            ((5, 1), (1, 3)),
            ((3,), ()),
            ((), (2, 2)),
        ]:
            a, b = worlds.integers(left), worlds.integers(right, 1)
            p_names, q_names = (
                ["R", "F(gpu)", "O(gpu; 1)", "+sum(gpu)"]
                + ["S0(gpu)"] * (len(s) > 0)
                + ["S0(node) S1(gpu)", "S1(gpu,node)"] * (len(s) > 1)
                for s in (left, right)
            )
            for p in p_names:
                for q in q_names:
                    got = lins.distribute_tensor(a, m, p) - lins.distribute_tensor(b, m, q)
                    if not worlds.same(got, a - b):
                        bad.append((left, right, p, q))
        return bad

    failures((2, 2), f)


# --- the table of docs/dtensor.md


def layout_of(x):
    return str(x.layout)


def test_rules_for_layouts_of_results():
    def f(m):
        def d(layout, shape=(4, 6)):
            return lins.distribute_tensor(torch.ones(shape), m, layout)

        with lins.trace() as t:
            assert layout_of(d("S0(gpu)") + d("S0(gpu)")) == "S0(gpu)"
            assert layout_of(d("S0(gpu)") + d("R")) == "S0(gpu)"
            assert layout_of(d("F(gpu)") * d("R")) == "F(gpu)"
            assert layout_of(d("S0(gpu)") + d("R", (6,))) == "S0(gpu)"
            assert layout_of(d("+sum(gpu)") * 2) == "+sum(gpu)"
            assert layout_of(d("+avg(gpu)") / 2) == "+avg(gpu)"
            assert layout_of(-d("+sum(gpu)")) == "+sum(gpu)"
            assert layout_of(d("+sum(gpu)") + d("+sum(gpu)")) == "+sum(gpu)"
            assert layout_of(d("S0(gpu) S1(node)").sum()) == "+sum(node,gpu)"
            assert layout_of(d("S0(gpu) S1(node)").sum(dim=0)) == "S0(node) +sum(gpu)"
            assert layout_of(d("S0(gpu)").mean(dim=1)) == "S0(gpu)"
            assert layout_of(d("F(gpu)").sum()) == "+sum(gpu)"
            assert layout_of(d("O(gpu; 1)").sum()) == "O(gpu; 1)"
            assert layout_of(d("S0(gpu)").max()) == "+max(gpu)"
            assert layout_of(d("S0(gpu)").min(dim=1)) == "S0(gpu)"
            assert layout_of(d("S0(gpu)") @ d("R", (6, 3))) == "S0(gpu)"
            assert layout_of(d("R") @ d("S1(gpu)", (6, 4))) == "S1(gpu)"
            assert layout_of(d("S1(gpu)") @ d("S0(gpu)", (6, 4))) == "+sum(gpu)"
            assert layout_of(d("S0(node) S1(gpu)") @ d("S0(gpu)", (6, 4))) == "S0(node) +sum(gpu)"
        assert not t.records
        with lins.trace() as t:
            assert layout_of(d("+sum(gpu)") + 1) == "R"
            assert layout_of(d("+sum(gpu)").abs()) == "R"
            assert layout_of(d("+sum(gpu)") * d("R")) == "R"
            assert layout_of(d("+sum(gpu)").max()) == "R"
            assert layout_of(d("+sum(gpu)").norm()) == "R"
            assert layout_of(d("+sum(gpu)") < 1) == "R"
            assert layout_of(2 / d("+sum(gpu)")) == "R"
        assert [r.op for r in t.records] == ["all_reduce"] * 7
        with lins.trace() as t:
            assert layout_of(d("+sum(gpu)") + d("S0(gpu)")) == "S0(gpu)"
            assert layout_of(d("+max(gpu)").sum()) == "R"
            assert layout_of(d("+sum(gpu)").to(torch.float64)) == "R"
            assert layout_of(d("F(gpu)").sum(dim=0)) == "R"
        assert [r.op for r in t.records] == [
            "reduce_scatter",
            "all_reduce",
            "all_reduce",
            "all_gather",
        ]
        assert layout_of(d("S0(gpu)") + d("S1(gpu)")) == "S0(gpu)"
        assert layout_of(d("S0(gpu)").norm(1)) == "+sum(gpu)"
        assert layout_of(d("S0(gpu)").norm(float("inf"))) == "+max(gpu)"
        assert layout_of(d("S0(gpu)").requires_grad_().max()) == "R"
        assert layout_of(d("S0(gpu)").argmax()) == "R"
        assert layout_of(d("S0(gpu)").norm()) == "R"
        assert layout_of(d("+sum(gpu)") + d("S0(gpu)")) == "S0(gpu)"

    on((2, 2), f)


def test_dtypes_promote_as_torch():
    values = [
        torch.ones(3, dtype=d) for d in (torch.int32, torch.float32, torch.float64, torch.bool)
    ]
    values += [torch.tensor(2.0, dtype=torch.float64), torch.tensor(3)]

    def f(m):
        for a in values:
            for b in values:
                for p, q in [("R", "R"), ("F(gpu)", "R"), ("R", "F(gpu)"), ("O(gpu; 0)", "R")]:
                    x, y = lins.distribute_tensor(a, m, p), lins.distribute_tensor(b, m, q)
                    assert (x + y).dtype == (a + b).dtype, (a, b, p, q)
                    assert (x / y).dtype == (a / b).dtype, (a, b, p, q)
            x = lins.distribute_tensor(a, m, "R")
            for s in (True, 2, 2.5):
                assert (x * s).dtype == (a * s).dtype

    on((1, 2), f)


def test_in_place_forms_keep_memory_and_layout_or_refuse():
    def f(m):
        x = lins.distribute_tensor(torch.arange(5.0), m, "S0(gpu)")
        memory, same = x.to_local().data_ptr(), x
        x += 1
        x *= lins.distribute_tensor(torch.arange(5.0), m, "R")
        x -= lins.distribute_tensor(torch.ones(1), m, "S0(gpu)")
        x /= 2
        assert x is same and x.to_local().data_ptr() == memory and layout_of(x) == "S0(gpu)"
        want = ((torch.arange(5.0) + 1) * torch.arange(5.0) - 1) / 2
        assert torch.equal(x.full_tensor(), want)
        assert x.add_(1).sub_(1).mul_(2).div_(2) is x
        assert torch.equal(x.full_tensor(), want)

        p = lins.distribute_tensor(torch.ones(3), m, "+sum(gpu)")
        p *= 2
        p += p.clone()
        assert layout_of(p) == "+sum(gpu)" and p.full_tensor().tolist() == [4.0] * 3
        r = lins.distribute_tensor(torch.ones(3), m, "R")
        for refused in (lambda: p.add_(1), lambda: p.add_(r), lambda: p.mul_(r)):
            with pytest.raises(lins.LinsError, match=r"in-place .*\+sum\(gpu\)"):
                refused()
        with pytest.raises(lins.LinsError, match="broadcast"):
            r.add_(lins.ones((2, 3), mesh=m))
        with pytest.raises(lins.LinsError, match="Long"):
            lins.ones(3, mesh=m, dtype=torch.int64).mul_(0.5)

    on((1, 2), f)


def test_equal_and_allclose_answer_alike_on_every_rank():
    def f(m):
        a = torch.arange(7.0)
        x, y = lins.distribute_tensor(a, m, "S0(gpu)"), lins.distribute_tensor(a, m, "F(gpu,node)")
        z = lins.DTensor.from_local(a.clone(), m, "R")
        if m.rank == 3:
            z.to_local()[6] += 1
        return [
            x.equal(y),
            x.equal(z),
            x.allclose(y + 1e-9),
            x.allclose(y + 1),
            x.equal(x.reshape(7, 1)),
            x.allclose(x * float("nan"), equal_nan=True),
        ]

    assert on((2, 2), f) == [[True, False, True, False, False, False]] * 4


def test_argmax_takes_the_first_of_equals_and_nan_as_the_largest():
    a = torch.tensor([1.0, 7.0, 2.0, 7.0, float("nan"), 7.0, float("nan")])

    def f(m):
        for layout in worlds.sums(worlds.VECTOR):
            if "+" in layout:
                continue
            x = lins.distribute_tensor(a, m, layout)
            assert x.argmax().item() == 4
            assert x[:].argmin().item() == 4
            assert lins.distribute_tensor(a[:4], m, layout).argmax().item() == 1
            low = lins.full((5,), float("-inf"), mesh=m, placements=layout)
            assert low.argmax().item() == 0

    on((2, 2), f)


def test_reductions_over_no_elements_behave_as_torch():
    def f(m):
        x = lins.zeros((0, 3), mesh=m, placements="S1(gpu)")
        assert x.sum().item() == 0
        assert x.mean().full_tensor().isnan()
        assert x.max(dim=1).full_tensor().shape == (0,)
        for refused in (x.max, x.min, x.argmax, lambda: x.max(dim=0), lambda: x.norm(float("inf"))):
            with pytest.raises(lins.LinsError, match=r"no elements.*\(0, 3\)") as e:
                refused()
            assert isinstance(e.value, RuntimeError)
        with pytest.raises(lins.LinsError, match="floating-point"):
            lins.ones(3, mesh=m, dtype=torch.int64).mean()

    on((1, 2), f)


# --- shapes


def test_reshape_keeps_what_a_layout_can_describe():
    legal = [
        ((4, 6), "S0(gpu)", (4, 2, 3), "S0(gpu)"),
        ((4, 6), "S0(gpu)", (2, 2, 6), "S0(gpu)"),
        ((4, 6), "S0(gpu)", (24,), "S0(gpu)"),
        ((4, 6), "S1(gpu)", (2, 2, 6), "S2(gpu)"),
        ((4, 6), "S0(node) S1(gpu)", (2, 2, 2, 3), "S0(node) S2(gpu)"),
        ((5, 3), "S0(gpu)", (5, 1, 3), "S0(gpu)"),
        ((5, 3), "F(gpu)", (15,), "F(gpu)"),
        ((5, 3), "O(gpu; 1)", (3, -1), "O(gpu; 1)"),
        ((5, 3), "+sum(gpu)", (3, 5), "+sum(gpu)"),
        ((1, 4), "S1(gpu)", (4,), "S0(gpu)"),
        ((0, 4), "S1(gpu)", (2, 0), "R"),
    ]
    refused = [((4, 6), "S0(gpu)", (3, 8)), ((5, 3), "S0(gpu)", (15,)), ((4, 6), "S1(gpu)", (24,))]

    def f(m):
        for shape, layout, new, want in legal:
            a = torch.arange(float(torch.tensor(shape).prod())).reshape(shape)
            x = lins.distribute_tensor(a, m, layout)
            with lins.no_communication():
                y = x.view(*new)
            assert layout_of(y) == want, (shape, layout, new, layout_of(y))
            assert torch.equal(y.full_tensor(), a.reshape(new))
            assert "+" in layout or torch.equal(x.reshape(new).full_tensor(), a.reshape(new))
        for shape, layout, new in refused:
            x = lins.ones(shape, mesh=m, placements=layout)
            with pytest.raises(lins.LinsError, match=r"no layout describes.*Redistribute"):
                x.reshape(new)
        with pytest.raises(lins.LinsError, match=r"\(5, 5\) does not fit the 24 elements"):
            lins.ones((4, 6), mesh=m).reshape(5, 5)

    on((2, 2), f)


def test_transpose_and_indexing_keep_the_layout_or_refuse():
    def f(m):
        a = torch.arange(24).reshape(4, 6)
        x = lins.distribute_tensor(a, m, "S0(gpu)")
        assert layout_of(x.t()) == "S1(gpu)" and worlds.same(x.t(), a.t())
        assert worlds.same(x.transpose(0, -1), a.t()) and worlds.same(x.T, a.t())
        assert worlds.same(x[:, 2], a[:, 2]) and layout_of(x[:, 2]) == "S0(gpu)"
        assert worlds.same(x[None, :, 1:6:2], a[None, :, 1:6:2])
        assert worlds.same(x[..., -1, None], a[..., -1, None])
        o = lins.distribute_tensor(a, m, "O(gpu; 1)")
        assert worlds.same(o[1, 2:], a[1, 2:]) and worlds.same(o.t(), a.t())
        p = lins.distribute_tensor(a, m, "+sum(gpu)")
        assert worlds.same(p[1], a[1])
        assert [r.full_tensor().tolist() for r in p] == a.tolist() and len(p) == 4
        flat = lins.distribute_tensor(a, m, "F(gpu)")
        assert worlds.same(flat[:], a)
        for refused in (lambda: x[0], lambda: x[1:], lambda: flat[0], flat.t):
            with pytest.raises(lins.LinsError, match="Redistribute it to R"):
                refused()
        for wrong in (lambda: x[:, 6], lambda: x[torch.tensor([1])], lambda: x[:, ::-1]):
            with pytest.raises(lins.LinsError, match=r"index|step"):
                wrong()

    on((2, 2), f)


# --- copies, printing, mistakes


def test_copies_clones_and_pickling():
    def f(m):
        x = lins.distribute_tensor(torch.arange(4.0), m, "S0(gpu)")
        assert copy.copy(x).to_local().data_ptr() == x.to_local().data_ptr()
        for other in (copy.deepcopy(x), x.clone(), copy.deepcopy([x])[0]):
            assert other.to_local().data_ptr() != x.to_local().data_ptr()
            assert other.equal(x) and other.layout == x.layout
        with pytest.raises(lins.LinsError, match=r"cannot be pickled.*full_tensor\(\)"):
            pickle.dumps(x)
        assert len({x, x, copy.copy(x)}) == 2

    on((1, 2), f)


def test_printing_shows_layout_and_local_values_without_communication():
    def f(m):
        with lins.no_communication():
            return repr(lins.distribute_tensor(torch.arange(3.0), m, "S0(gpu)"))

    first, second = on((1, 2), f)
    assert first.startswith("DTensor(S0(gpu), shape=(3,), dtype=torch.float32, Mesh(node=1, gpu=2)")
    assert "rank 0 holds [0, 2):\ntensor([0., 1.])" in first
    assert "rank 1 holds [2, 3):\ntensor([2.])" in second


def test_mistakes_name_both_sides():
    def f(m):
        x = lins.ones((4, 6), mesh=m)
        with pytest.raises(lins.LinsError, match=r"\(4, 6\) and \(4,\) do not broadcast"):
            x + lins.ones(4, mesh=m)
        with pytest.raises(lins.LinsError, match=r"\(4, 6\) and \(4, 6\) are not"):
            x @ x
        with pytest.raises(lins.LinsError, match="plain tensor"):
            x + torch.ones(4, 6)
        with pytest.raises(lins.LinsError, match="plain tensor"):
            torch.ones(4, 6) + x
        with pytest.raises(TypeError):
            x + "1"
        with pytest.raises(lins.LinsError, match=r"dimension 2 .*\(4, 6\)"):
            x.sum(dim=2)
        with pytest.raises(lins.LinsError, match="p=3"):
            x.norm(3)
        with pytest.raises(lins.LinsError, match="twice"):
            x.sum(dim=(0, -2))
        other = lins._core.LiveMesh(m.world, [2, 1], ["x", "y"])
        with pytest.raises(lins.LinsError, match=r"Mesh\(node=1, gpu=2\) and Mesh\(x=2, y=1\)"):
            x + lins.ones((4, 6), mesh=other)
        with pytest.raises(lins.LinsError, match="24 elements"):
            x.item()

    on((1, 2), f)
