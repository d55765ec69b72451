"""Gradients of DTensors equal those of one process, and have the layouts the docs say."""

import itertools

import lins
import pytest
import torch
from lins.testing import run

AXES = ("node", "gpu")
LAYOUTS = ["R", "S0(gpu)", "S1(node,gpu)", "S0(gpu) S1(node)", "F(gpu,node)", "O(gpu; 1)"]
PARTIAL = ["+sum(gpu)", "S0(gpu) +sum(node)", "+avg(node,gpu)", "+avg(gpu) +sum(node)"]


def values(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaf(tensor, mesh, layout):
    return lins.distribute_tensor(tensor, mesh, layout).requires_grad_()


def weight(x):
    """A replicated weight per element, so that gradients differ from element to element."""
    return lins.distribute_tensor(values(x.shape, 7), x.mesh, "R")


def check(got, want):
    full = got.grad.full_tensor()
    assert torch.allclose(full, want, rtol=1e-12, atol=1e-12), (got.layout, full, want)


@pytest.mark.parametrize("mesh", [(2, 2), (2, 3)])
def test_gradients_through_every_redistribution(mesh):
    def f(m):
        for shape in [(5, 3), (1, 8), (0, 3)]:
            for src, dst in itertools.product(LAYOUTS + PARTIAL, repeat=2):
                x = leaf(values(shape), m, src)
                try:
                    y = x.redistribute(dst)
                except lins.LinsError:
                    assert "+" in src and "+" in dst  # between unlike partials
                    continue
                (y * weight(y)).sum().backward()
                check(x, values(shape, 7))

    run(mesh, AXES, f)


def test_the_gradient_of_a_reduction_is_replicated_and_of_a_gather_is_a_slice():
    def f(m):
        with lins.trace() as t:
            x = leaf(torch.ones(4), m, "+sum(gpu)")
            x.redistribute("R").sum().backward()
        assert [r.op for r in t.records] == ["all_reduce"]  # the forward's
        assert str(x.grad.layout) == "R"
        x = leaf(torch.ones(4), m, "S0(gpu)")
        with lins.trace() as t:
            x.redistribute("R").sum().backward()
        assert [r.op for r in t.records] == ["all_gather"]
        assert str(x.grad.layout) == "S0(gpu)"
        x = leaf(torch.ones(4), m, "R")
        y = x.redistribute("S0(gpu)").sum()
        with lins.trace() as t:
            y.backward()
        assert [r.op for r in t.records] == ["all_gather"]
        assert str(x.grad.layout) == "R" and x.grad.full_tensor().tolist() == [1.0] * 4

    run((1, 2), AXES, f)


def test_local_and_full_tensors_carry_gradients():
    def f(m):
        local = values((2, 3), m.rank).requires_grad_()
        x = lins.DTensor.from_local(local, m, "S0(gpu)", shape=(4, 3))
        full = x.full_tensor()  # taken as used alike on every rank
        (full * full).sum().backward()
        assert torch.allclose(local.grad, 2 * local)

        shared = values((3,)).requires_grad_()
        y = lins.DTensor.from_local(shared, m, "R").to_local(grad="+sum(gpu)")
        (y * (m.rank + 1)).sum().backward()  # each rank on data of its own
        assert shared.grad.tolist() == [3.0] * 3

        mine = torch.ones(2, dtype=torch.float64, requires_grad=True)
        (lins.DTensor.from_local(mine, m, "+avg(gpu)").full_tensor() * 4).sum().backward()
        assert mine.grad.tolist() == [2.0, 2.0]
        with pytest.raises(lins.LinsError, match="local shapes differ"):
            x.to_local(grad="R")

    run((1, 2), AXES, f)


OPERATIONS = {
    "a+b": lambda a, b: a + b,
    "a*b-a": lambda a, b: a * b - a,
    "a/b": lambda a, b: a / b,
    "2/a": lambda a, b: 2 / a + 3 * b,
    "abs": lambda a, b: abs(-a) * 2 - b,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_of_arithmetic(name):
    op = OPERATIONS[name]
    shapes = [((5, 3), (5, 3)), ((5, 3), (3,)), ((5, 1), (1, 3)), ((5, 3), ())]

    def f(m):
        for left, right in shapes:
            a, b = (values(s, i).requires_grad_() for i, s in enumerate((left, right)))
            out = op(a, b)
            (out * values(out.shape, 7)).sum().backward()
            for p, q in itertools.product(
                [*LAYOUTS, "+sum(gpu)"], ["R", "S0(gpu)", "F(node)", "+sum(node)"]
            ):
                if (right == () and "S0" in q) or (left == (5, 1) and q == "S1(node,gpu)"):
                    continue
                x, y = leaf(a.detach(), m, p), leaf(b.detach(), m, q)
                z = op(x, y)
                (z * weight(z)).sum().backward()
                check(x, a.grad)
                check(y, b.grad)

    run((2, 2), AXES, f)


REDUCTIONS = {
    "sum": lambda t, **k: t.sum(**k),
    "mean": lambda t, **k: t.mean(**k),
    "max": lambda t, **k: t.amax(**k) if isinstance(t, torch.Tensor) else t.max(**k),
    "min": lambda t, **k: t.amin(**k) if isinstance(t, torch.Tensor) else t.min(**k),
    "norm1": lambda t, **k: (
        torch.linalg.vector_norm(t, 1, **k) if isinstance(t, torch.Tensor) else t.norm(1, **k)
    ),
    "norm2": lambda t, **k: (
        torch.linalg.vector_norm(t, 2, **k) if isinstance(t, torch.Tensor) else t.norm(**k)
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_of_reductions_ties_and_zeros_included(name):
    op = REDUCTIONS[name]

    def f(m):
        for tensor in (values((5, 3)), torch.zeros(2, 8, dtype=torch.float64)):
            for dim in (0, 1, (0, 1)):
                a = tensor.clone().requires_grad_()
                out = op(a, dim=dim)
                (out * values(out.shape, 7)).sum().backward()
                for layout in LAYOUTS + PARTIAL:
                    x = leaf(tensor, m, layout)
                    y = op(x, dim=dim)
                    (y * weight(y)).sum().backward()
                    check(x, a.grad)

    run((2, 2), AXES, f)


def test_gradients_of_matmul_in_every_pair_of_layouts():
    def f(m):
        a, b = values((5, 4)).requires_grad_(), values((4, 3), 1).requires_grad_()
        ((a @ b) * values((5, 3), 7)).sum().backward()
        for p, q in itertools.product([*LAYOUTS, "+sum(gpu)", "S1(gpu)"], [*LAYOUTS, "S0(gpu)"]):
            x, y = leaf(a.detach(), m, p), leaf(b.detach(), m, q)
            z = x @ y
            (z * weight(z)).sum().backward()
            check(x, a.grad)
            check(y, b.grad)

    run((2, 2), AXES, f)


def test_gradients_of_shapes_copies_and_a_small_network():
    def f(m):
        w1, w2, data = values((4, 8)), values((8, 2), 1), values((6, 4), 2)
        a, b = w1.clone().requires_grad_(), w2.clone().requires_grad_()
        hidden = data @ a
        loss = ((hidden * hidden) @ b).reshape(2, 3, 2)[:, 1].t().abs().mean()
        loss.backward()
        x, y = leaf(w1, m, "S1(gpu)"), leaf(w2, m, "S0(gpu)")  # column, then row
        d = lins.distribute_tensor(data, m, "S0(node)")
        h = d @ x
        assert str(h.layout) == "S0(node) S1(gpu)"
        out = (h * h) @ y
        assert str(out.layout) == "S0(node) +sum(gpu)"
        got = out.reshape(2, 3, 2)[:, 1].clone().t().abs().mean()
        got.backward()
        assert torch.allclose(got.full_tensor(), loss)
        check(x, a.grad)
        check(y, b.grad)

    run((2, 2), AXES, f)


def test_pending_extrema_share_the_gradient_among_equals():
    def f(m):
        mine = torch.tensor([[1.0, 5.0], [4.0, 5.0]][m.rank], requires_grad=True)
        x = lins.DTensor.from_local(mine, m, "+max(gpu)")
        (x.redistribute("R") * 6).sum().backward()
        y = leaf(torch.tensor([1.0, 2.0]), m, "R")
        (y.redistribute("+max(gpu)").redistribute("R") * 4).sum().backward()
        assert y.grad.full_tensor().tolist() == [4.0, 4.0]
        with pytest.raises(lins.LinsError, match="product has no gradient"):
            lins.DTensor.from_local(mine, m, "+product(gpu)").full_tensor()
        return mine.grad.tolist()

    assert run((1, 2), AXES, f) == [[0.0, 3.0], [6.0, 3.0]]


def test_second_derivatives():
    def f(m):
        x = leaf(torch.tensor([1.0, 2.0, 3.0]), m, "S0(gpu)")
        full = x.full_tensor()
        (grad,) = torch.autograd.grad((full**3).sum(), x.to_local(), create_graph=True)
        g = lins.DTensor.from_local(grad, m, x.layout)
        (g * g).sum().backward()  # d/dx (3 x^2)^2 = 36 x^3
        return x.grad.full_tensor().tolist()

    assert run((1, 2), AXES, f) == [[36.0, 288.0, 972.0]] * 2


def test_in_place_addition_is_recorded_and_leaves_are_protected():
    def f(m):
        x = leaf(torch.ones(4), m, "R")
        y = lins.zeros(4, mesh=m, placements="S0(gpu)")
        y += x
        y *= 3
        y.sum().backward()
        assert x.grad.full_tensor().tolist() == [3.0] * 4
        with pytest.raises(lins.LinsError, match="leaf"):
            x.add_(1)
        assert not x.detach().requires_grad and x.is_leaf
        with pytest.raises(lins.LinsError, match="one element"):
            (x * 2).backward()
        (x * 2).backward(lins.ones(4, mesh=m))
        assert x.grad.full_tensor().tolist() == [5.0] * 4

    run((1, 2), AXES, f)
