"""Factories: values are a function of seed and place, never of the layout."""

import dtensor_worlds as worlds
import lins
import pytest
import torch
from lins.testing import run

LAYOUTS = [*worlds.MATRIX, "F(gpu; 3/40)", [lins.Replicate(), lins.Shard(1)]]


@pytest.mark.parametrize("mesh", [m for m, _ in worlds.MESHES])
def test_random_values_do_not_depend_on_the_layout(mesh):
    # 40 does not divide by 3, and the average of three equal numbers may be off by its rounding.
    layouts = [n for n in LAYOUTS if mesh[1] != 3 or not ("/40" in n or "+avg(gpu)" in n)]

    def f(m):
        for shape in [(5, 7), (1, 1), (0, 3), (8, 2)]:
            for make in (lins.rand, lins.randn):
                for dtype in (torch.float32, torch.float64, torch.bfloat16):
                    want = make(shape, mesh=m, seed=3, dtype=dtype).to_local()
                    for layout in layouts:
                        with lins.no_communication():
                            x = make(shape, mesh=m, placements=layout, seed=3, dtype=dtype)
                        assert worlds.same(x, want), (shape, make, layout, dtype)

    run(mesh, ("node", "gpu"), f)


def test_random_values_are_the_same_on_another_mesh():
    def values(mesh):
        def f(m):
            return lins.randn((6, 5), mesh=m, placements="S0(gpu,node)", seed=9).full_tensor()

        return run(mesh, ("node", "gpu"), f)[0]

    assert torch.equal(values((2, 2)), values((1, 3)))


def philox(seed, counter, stream):
    """Philox 4x32-10, from the paper."""
    c = [counter & 0xFFFFFFFF, counter >> 32, stream, 0]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_uniform_numbers_are_philox_words():
    assert philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # known answer
    seed = 2**40 + 17

    def f(m):
        return lins.rand(11, mesh=m, placements="S0(gpu)", seed=seed).full_tensor()

    words = [w for block in range(3) for w in philox(seed, block, 0)]
    want = torch.tensor([(w >> 8) / 2**24 for w in words[:11]], dtype=torch.float32)
    assert torch.equal(run((1, 2), ("node", "gpu"), f)[0], want)


def test_distributions():
    def f(m):
        n = 200_000
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            u = lins.rand(n, mesh=m, seed=1, dtype=dtype).to_local()
            assert u.min() >= 0 and u.max() < 1
            u = u.double()
            assert abs(u.mean() - 0.5) < 0.005 and abs(u.var() - 1 / 12) < 0.001
            z = lins.randn(n, mesh=m, seed=1, dtype=dtype).to_local().double()
            assert z.isfinite().all() and abs(z.mean()) < 0.01 and abs(z.var() - 1) < 0.02
            assert abs((z[::2] * z[1::2]).mean()) < 0.01  # the two of a pair are independent
        a, b = (lins.rand(n, mesh=m, seed=s).to_local() for s in (1, 2))
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.01

    run((1, 1), ("node", "gpu"), f)


@pytest.mark.parametrize("mesh", [m for m, _ in worlds.MESHES])
def test_constants_under_every_layout(mesh):
    def f(m):
        for layout in worlds.MATRIX:
            assert worlds.same(lins.zeros((5, 3), mesh=m, placements=layout), torch.zeros(5, 3))
            assert worlds.same(lins.ones((5, 3), mesh=m, placements=layout), torch.ones(5, 3))
            x = lins.full((5, 3), 2.5, mesh=m, placements=layout)
            assert worlds.same(x, torch.full((5, 3), 2.5))
            e = lins.empty((5, 3), mesh=m, placements=layout, dtype=torch.int32)
            assert e.dtype == torch.int32 and str(e.layout) == layout and e.shape == (5, 3)

    run(mesh, ("node", "gpu"), f)


def test_dtypes_and_shapes():
    def f(m):
        assert lins.full(3, 2, mesh=m).dtype == torch.int64
        assert lins.full(3, True, mesh=m).dtype == torch.bool
        assert lins.full(3, 1j, mesh=m).dtype == torch.complex64
        assert lins.full((), 2, mesh=m, dtype=torch.float64).dtype == torch.float64
        assert lins.zeros([2, 3], mesh=m).shape == (2, 3)
        layout = lins.Layout("S0(gpu)", shape=(4, 2), mesh=m)
        assert lins.rand((4, 2), mesh=m, placements=layout).layout == layout
        with pytest.raises(lins.LinsError, match=r"\(4, 2\).*\(2, 4\)"):
            lins.rand((2, 4), mesh=m, placements=layout)
        with pytest.raises(lins.LinsError, match="float32"):
            lins.rand(3, mesh=m, dtype=torch.int64)
        with pytest.raises(lins.LinsError, match="product"):
            lins.zeros(3, mesh=m, placements="+product(gpu)")
        with pytest.raises(lins.LinsError, match="number"):
            lins.full(3, "x", mesh=m)

    run((1, 2), ("node", "gpu"), f)
