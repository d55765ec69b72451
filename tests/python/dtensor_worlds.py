"""Meshes and layouts that the tests of DTensor sweep over."""

import itertools

import lins
import torch

MESHES = [((2, 2), ("node", "gpu")), ((2, 3), ("node", "gpu")), ((1, 4), ("node", "gpu"))]
SIZES = (0, 1, 2, 3, 5, 8)

# With up to two tensor dimensions: R, S in every order, partial, F, O.
VECTOR = ["R", "S0(node)", "S0(gpu)", "S0(node,gpu)", "S0(gpu,node)", "F(gpu)", "F(gpu,node)"]
VECTOR += ["O(gpu; 1)", "O(node,gpu; 2)", "+sum(gpu)", "+sum(node,gpu)", "S0(gpu) +sum(node)"]
MATRIX = ["R", "S0(gpu,node)", "S1(node,gpu)", "S0(node) S1(gpu)", "S0(gpu) S1(node)", "S1(gpu)"]
MATRIX += ["F(node,gpu)", "O(gpu; 0)", "+sum(node)", "S1(gpu) +sum(node)", "+avg(gpu)"]


def sums(layouts):
    """Without pending averages, which integers do not have."""
    return [x for x in layouts if "avg" not in x]


def shapes():
    """Vectors of every size, and matrices whose sides take every size."""
    yield from ((n,) for n in SIZES)
    yield from zip(SIZES, reversed(SIZES), strict=True)
    yield from [(3, 5), (2, 8), (5, 3), (5, 1), (1, 5), (8, 2)]


def layouts(shape):
    return VECTOR if len(shape) == 1 else MATRIX


def integers(shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, tuple(shape), generator=g)


def pairs(names):
    return itertools.product(names, repeat=2)


def same(got, want):
    """The whole of a DTensor equals a plain tensor: shape, dtype and every element."""
    full = got.full_tensor()
    return (
        full.shape == want.shape
        and full.dtype == want.dtype
        and torch.equal(full, want)
        and isinstance(got, lins.DTensor)
    )
