"""Meshes: coordinates, sub-axes and groups of ranks, against a reference by counting."""

import itertools
import math
import pickle

import lins
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def meshes_and_axes(draw):
    """A mesh, and parts of its axes as (axis, size, stride): none overlapping, in any order."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=3))
    parts = []
    for axis, n in enumerate(sizes):
        # Cut the axis into a chain of factors, fastest first, and keep some of them.
        stride = 1
        while stride < n:
            size = draw(st.sampled_from(divisors(n // stride)[1:]))
            parts.append((axis, size, stride))
            stride *= size
        if n == 1:
            parts.append((axis, 1, 1))
    chosen = draw(st.lists(st.sampled_from(parts), unique=True, max_size=4))
    return lins.Mesh(sizes, [f"x{i}" for i in range(len(sizes))]), chosen


def notation(mesh, parts):
    return ",".join(f"{mesh.axes[axis]}:{size}@{stride}" for axis, size, stride in parts)


def reference_groups(mesh, parts):
    """Ranks equal in all but the given sub-coordinates, sorted by these."""
    groups = {}
    for rank, c in enumerate(itertools.product(*(range(n) for n in mesh.shape))):
        rest = list(c)
        index = []
        for axis, size, stride in parts:
            coordinate = c[axis] // stride % size
            rest[axis] -= coordinate * stride
            index.append(coordinate)
        groups.setdefault(tuple(rest), []).append((index, rank))
    return [[rank for _, rank in sorted(group)] for group in groups.values()]


@settings(deadline=None)
@given(meshes_and_axes())
def test_groups_are_the_ranks_that_differ_in_the_sub_axes_only(case):
    mesh, parts = case
    groups = mesh.groups(notation(mesh, parts))
    assert sorted(groups) == sorted(reference_groups(mesh, parts))
    assert [g[0] for g in groups] == sorted(g[0] for g in groups)
    assert sorted(rank for g in groups for rank in g) == list(range(mesh.size))


@settings(deadline=None)
@given(meshes_and_axes())
def test_coordinates_are_those_of_a_row_major_array(case):
    mesh, _ = case
    assert mesh.size == math.prod(mesh.shape)
    expected = list(itertools.product(*(range(n) for n in mesh.shape)))
    assert [mesh.coordinate(rank) for rank in range(mesh.size)] == expected


def test_properties_of_a_mesh():
    mesh = lins.Mesh((4, 8), ("node", "gpu"))
    assert (mesh.shape, mesh.axes, mesh.size) == ((4, 8), ("node", "gpu"), 32)
    assert mesh.coordinate(19) == (2, 3)
    assert repr(mesh) == "Mesh(node=4, gpu=8)"


def test_groups_in_the_order_of_the_sub_axes():
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    assert mesh.groups("gpu:2") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("gpu:2@2") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("node") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("gpu,node") == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert mesh.groups("gpu:2@2,gpu:2") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups("gpu:2,gpu:2@2") == [[0, 2, 1, 3], [4, 6, 5, 7]]
    assert mesh.groups("") == [[rank] for rank in range(8)]


def test_a_mesh_is_a_value():
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    same = lins.Mesh([2, 4], ["node", "gpu"])
    assert mesh == same and hash(mesh) == hash(same)
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    for other in [
        lins.Mesh((4, 2), ("node", "gpu")),
        lins.Mesh((2, 4), ("gpu", "node")),
        lins.Mesh((8,), ("gpu",)),
    ]:
        assert mesh != other
    assert mesh != "mesh"


@pytest.mark.parametrize(
    "shape, axes, message",
    [
        ((), (), "one name per dimension"),
        ((2, 2), ("a",), r"got shape \(2, 2\) and axes \(a\)"),
        ((2, 0), ("a", "b"), "mesh axis 'b' has size 0, must be at least 1"),
        ((-1,), ("a",), "mesh axis 'a' has size -1"),
        ((2, 2), ("a", "a"), "mesh axis 'a' appears twice"),
        ((2,), ("2a",), "mesh axis name '2a' must be letters, digits and '_'"),
        ((2,), ("",), "mesh axis name ''"),
        ((2**30, 2**30), ("a", "b"), "more than 2\\^40 ranks"),
    ],
)
def test_what_is_no_mesh_is_refused(shape, axes, message):
    with pytest.raises(lins.LinsError, match=message) as error:
        lins.Mesh(shape, axes)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    "axes, message, caret",
    [
        ("gpx", "unknown axis 'gpx': Mesh(node=2, gpu=4) has node, gpu", 0),
        ("node,", "expected an axis", 5),
        ("gpu:3", "sub-axis gpu:3@1 does not divide axis 'gpu' of size 4", 0),
        ("gpu:", "expected the size of a sub-axis, a whole number", 4),
        ("gpu:2@x", "expected the stride of a sub-axis, a whole number", 6),
        ("node,gpu:4@2", "sub-axis gpu:4@2 does not divide", 5),
        ("gpu,gpu:2", "axis 'gpu' is used twice: gpu and gpu:2 share coordinates", 4),
        ("gpu node", "unexpected text after the axes", 4),
    ],
)
def test_errors_in_axes_point_at_the_character(axes, message, caret):
    with pytest.raises(lins.LinsError) as error:
        lins.Mesh((2, 4), ("node", "gpu")).groups(axes)
    why, text, pointer = str(error.value).splitlines()
    assert message in why
    assert text == "  " + axes
    assert pointer == "  " + " " * caret + "^"


@pytest.mark.parametrize("rank", [-1, 8, 100])
def test_a_rank_outside_the_mesh_is_refused(rank):
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    with pytest.raises(lins.LinsError, match=rf"rank {rank} is outside .*: legal are 0 to 7"):
        mesh.coordinate(rank)
