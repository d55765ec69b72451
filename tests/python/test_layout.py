"""Layouts: notation, placements, and which elements each rank holds."""

import itertools
import math
import pickle

import lins
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MESHES = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]


def chunk(elements, k, index):
    """torch.chunk(elements, k)[index], empty where there are fewer chunks."""
    size = -(-len(elements) // k)
    pieces = [elements[i : i + size] for i in range(0, len(elements), size)] if size else []
    return pieces[index] if index < len(pieces) else []


def nested(n, axes, mesh, rank):
    """The indices of a dimension of n that a rank holds when the axes split it, major to minor."""
    elements = list(range(n))
    for axis in axes:
        i = mesh.axes.index(axis)
        elements = chunk(elements, mesh.shape[i], mesh.coordinate(rank)[i])
    return elements


def is_range(r, elements, n):
    return r == ((elements[0], elements[-1] + 1) if elements else (n, n))


def orders(axes):
    """Every ordered choice of axes, the empty one first."""
    return [p for k in range(len(axes) + 1) for p in itertools.permutations(axes, k)]


@pytest.mark.parametrize("sizes", MESHES)
def test_every_split_of_one_dimension(sizes):
    mesh = lins.Mesh(sizes, ("a", "b"))
    for axes, n in itertools.product(orders("ab"), range(10)):
        layout = lins.Layout(f"S0({','.join(axes)})" if axes else "R", shape=(n,), mesh=mesh)
        holders = [0] * n
        for rank in range(mesh.size):
            want = nested(n, axes, mesh, rank)
            assert is_range(layout.ranges(rank)[0], want, n), (layout, rank)
            assert layout.local_shape(rank) == (len(want),)
            for i in want:
                holders[i] += 1
        copies = mesh.size // math.prod(sizes["ab".index(x)] for x in axes)
        assert holders == [copies] * n, layout


@pytest.mark.parametrize("sizes", MESHES)
def test_every_split_of_two_dimensions(sizes):
    mesh = lins.Mesh(sizes, ("a", "b"))
    pairs = [p for p in itertools.product(orders("ab"), repeat=2) if not set(p[0]) & set(p[1])]
    shapes = itertools.product(range(10), (0, 1, 2, 3, 5, 9))
    for (rows, columns), shape in itertools.product(pairs, list(shapes)):
        terms = [f"S{d}({','.join(x)})" for d, x in enumerate((rows, columns)) if x]
        layout = lins.Layout(" ".join(terms) or "R", shape=shape, mesh=mesh)
        held = 0
        for rank in range(mesh.size):
            want = [nested(n, x, mesh, rank) for n, x in zip(shape, (rows, columns), strict=True)]
            got = layout.ranges(rank)
            assert all(map(is_range, got, want, shape)), (layout, rank)
            assert layout.local_shape(rank) == tuple(map(len, want))
            held += math.prod(map(len, want))
        split = math.prod(sizes["ab".index(x)] for x in rows + columns)
        assert held == math.prod(shape) * (mesh.size // split), layout


@pytest.mark.parametrize("sizes", MESHES)
def test_flat_shards_are_equal_slots_of_a_padded_buffer(sizes):
    mesh = lins.Mesh(sizes, ("a", "b"))
    for axes, n, offset in itertools.product(orders("ab")[1:], range(10), (None, 0, 1, 4)):
        group = mesh.groups(",".join(axes))[0]
        k = len(group)
        total = -(-(n + (offset or 0)) // k) * k + (0 if offset is None else 2 * k)
        window = "" if offset is None else f"; {offset}/{total}"
        layout = lins.Layout(f"F({','.join(axes)}{window})", shape=(n,), mesh=mesh)
        slot = total // k
        for index_group in mesh.groups(",".join(axes)):
            for index, rank in enumerate(index_group):
                want = [i for i in range(n) if (i + (offset or 0)) // max(slot, 1) == index]
                assert is_range(layout.ranges(rank)[0], want, n), (layout, rank)
                assert layout.local_shape(rank) == (len(want),)


@pytest.mark.parametrize("sizes", MESHES)
def test_an_owner_holds_everything_and_others_nothing(sizes):
    mesh = lins.Mesh(sizes, ("a", "b"))
    for axes, shape in itertools.product(orders("ab")[1:], [(), (0,), (5,), (2, 3)]):
        groups = mesh.groups(",".join(axes))
        n = math.prod(shape)
        for owner in range(len(groups[0])):
            layout = lins.Layout(f"O({','.join(axes)}; {owner})", shape=shape, mesh=mesh)
            for group in groups:
                for index, rank in enumerate(group):
                    mine = index == owner
                    assert layout.ranges(rank) == [(0, n) if mine else (n, n)]
                    assert layout.local_shape(rank) == (shape if mine else (0,))


def rows(notation, shape, mesh):
    layout = lins.Layout(notation, shape=shape, mesh=mesh)
    return [layout.local_shape(r)[0] for r in range(mesh.size)]


LINE = {k: lins.Mesh((k,), ("x",)) for k in (2, 4, 8, 30)}
SQUARE = lins.Mesh((2, 2), ("a", "b"))


def test_five_rows_nested_over_two_by_two_come_back_once():
    layout = lins.Layout("S0(a,b)", shape=(5, 3), mesh=SQUARE)
    assert [layout.ranges(r)[0] for r in range(4)] == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_five_rows_over_four_ranks_leave_the_last_empty():
    assert rows("S0(x)", (5, 10), LINE[4]) == [2, 2, 1, 0]
    assert lins.Layout("S0(x)", shape=(5, 10), mesh=LINE[4]).ranges(3) == [(5, 5), (0, 10)]


def test_nine_columns_over_two_ranks_split_five_and_four():
    layout = lins.Layout("S1(x)", shape=(3, 9), mesh=LINE[2])
    assert [layout.local_shape(r) for r in range(2)] == [(3, 5), (3, 4)]


def test_512_rows_over_30_ranks():
    assert rows("S0(x)", (512,), LINE[30]) == [18] * 28 + [8, 0]
    assert lins.Layout("S0(x)", shape=(512,), mesh=LINE[30]).ranges(29) == [(512, 512)]


def test_two_elements_over_eight_ranks_fill_exactly_two_shards():
    mesh = lins.Mesh((2, 4), ("a", "b"))
    for notation in ("S0(a,b)", "S0(b,a)", "F(a,b)"):
        layout = lins.Layout(notation, shape=(2,), mesh=mesh)
        ranges = [layout.ranges(r)[0] for r in range(8)]
        assert sorted(r for r in ranges if r != (2, 2)) == [(0, 1), (1, 2)]


def test_twenty_rows_over_eight_ranks():
    assert rows("S0(x)", (20,), LINE[8]) == [3, 3, 3, 3, 3, 3, 2, 0]


def test_six_elements_nested_are_another_layout_than_one_split():
    nested_split = lins.Layout("S0(x:2@2,x:2)", shape=(6,), mesh=LINE[4])
    one_split = lins.Layout("S0(x)", shape=(6,), mesh=LINE[4])
    assert rows("S0(a,b)", (6,), SQUARE) == [2, 1, 2, 1]
    assert rows("S0(x:2@2,x:2)", (6,), LINE[4]) == [2, 1, 2, 1]
    assert rows("S0(x)", (6,), LINE[4]) == [2, 2, 2, 0]
    assert nested_split != one_split
    assert str(nested_split) != str(one_split)


def test_order_of_axes_is_part_of_a_layout():
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    a, b = (lins.Layout(x, shape=(8,), mesh=mesh) for x in ("S0(node,gpu)", "S0(gpu,node)"))
    assert a != b
    assert [a.ranges(r)[0][0] for r in range(8)] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [b.ranges(r)[0][0] for r in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


PARTS = ["a", "b:2", "b:2@2", "c:3", "c:2@3"]  # of the mesh below; no two overlap
MESH = lins.Mesh((2, 4, 6), ("a", "b", "c"))
OPS = ["sum", "avg", "min", "max", "product", "band", "bor", "bxor"]


@st.composite
def layouts(draw):
    """A layout of any kind on MESH, as notation and shape."""
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=0, max_size=3)))
    parts = draw(st.permutations(PARTS))
    split, partial = parts[: draw(st.integers(0, 3))], parts[3 : draw(st.integers(3, 5))]
    kinds = ["F", "O"] + (["S"] if shape else [])
    terms = []
    if split:
        kind = draw(st.sampled_from(kinds))
        k = math.prod(int(p[2]) if ":" in p else 2 for p in split)
        if kind == "F":
            offset = draw(st.integers(0, 5))
            total = -(-(math.prod(shape) + offset) // k) * k + k * draw(st.integers(0, 1))
            window = f"; {offset}/{total}" if draw(st.booleans()) else ""
            terms = [f"F({','.join(split)}{window})"]
        elif kind == "O":
            terms = [f"O({','.join(split)}; {draw(st.integers(0, k - 1))})"]
        else:
            by_dim = {}
            for part in split:
                by_dim.setdefault(draw(st.integers(0, len(shape) - 1)), []).append(part)
            terms = [f"S{d}({','.join(p)})" for d, p in by_dim.items()]
    terms += [f"+{draw(st.sampled_from(OPS))}({p})" for p in partial]
    return " ".join(draw(st.permutations(terms))) or "R", shape


@settings(deadline=None, max_examples=300)
@given(layouts())
def test_notation_round_trips(case):
    notation, shape = case
    layout = lins.Layout(notation, shape=shape, mesh=MESH)
    again = lins.Layout(str(layout), shape=shape, mesh=MESH)
    assert again == layout and hash(again) == hash(layout)
    assert str(again) == str(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout
    spaced = notation.replace("(", " ( ").replace(",", " , ").replace(")", " )")
    assert lins.Layout(f"  {spaced} ", shape=shape, mesh=MESH) == layout
    for rank in (0, 17, MESH.size - 1):
        assert again.ranges(rank) == layout.ranges(rank)


@settings(deadline=None, max_examples=300)
@given(layouts(), layouts())
def test_layouts_are_equal_exactly_when_they_print_alike(one, two):
    a, b = (lins.Layout(text, shape=shape, mesh=MESH) for text, shape in (one, two))
    assert (a == b) == ((str(a), a.shape) == (str(b), b.shape))
    if a == b:
        assert hash(a) == hash(b)
    assert len({a, b, a, b}) == (1 if a == b else 2)


def test_equality_sees_shape_and_mesh():
    base = lins.Layout("S0(x)", shape=(8,), mesh=LINE[4])
    assert base != lins.Layout("S0(x)", shape=(9,), mesh=LINE[4])
    assert base != lins.Layout("S0(x)", shape=(8,), mesh=LINE[2])
    assert base != "S0(x)"
    assert repr(base) == "Layout('S0(x)', shape=(8,), mesh=Mesh(x=4))"
    assert (base.shape, base.mesh, base.numel) == ((8,), LINE[4], 8)


def test_normal_forms():
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    for text, want in {
        "S1(gpu) S0(node)": "S0(node) S1(gpu)",
        "+sum(gpu) +sum(node)": "+sum(node,gpu)",
        "+sum(gpu:2,gpu:2@2)": "+sum(gpu)",
        "+sum(gpu:1)": "R",
        "S0(gpu:4)": "S0(gpu)",
        "S0(gpu:2@2,gpu:2)": "S0(gpu:2@2,gpu:2)",
        "F(gpu; 0/32)": "F(gpu)",
        "F(gpu; 0/36)": "F(gpu; 0/36)",
    }.items():
        assert str(lins.Layout(text, shape=(8, 4), mesh=mesh)) == want


PLACEMENTS = [
    lins.Replicate(), lins.Shard(0), lins.Shard(1), *map(lins.Partial, ("sum", "avg", "max"))
]  # fmt: skip


@pytest.mark.parametrize("placements", list(itertools.product(PLACEMENTS, repeat=2)))
def test_placements_round_trip(placements):
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    layout = lins.Layout(list(placements), shape=(6, 5), mesh=mesh)
    assert layout.placements == list(placements)
    assert lins.Layout(str(layout), shape=(6, 5), mesh=mesh) == layout


def test_placements_are_values():
    assert lins.Shard(0) == lins.Shard(0) != lins.Shard(1)
    assert lins.Partial() == lins.Partial("sum") != lins.Partial("max")
    assert lins.Shard(0) != lins.Replicate()
    assert len({lins.Shard(0), lins.Shard(0), lins.Replicate(), lins.Replicate()}) == 2
    assert [*map(repr, PLACEMENTS[:4])] == [
        "Replicate()", "Shard(0)", "Shard(1)", "Partial('sum')"
    ]  # fmt: skip
    assert (lins.Shard(3).dim, lins.Partial("avg").op) == (3, "avg")
    with pytest.raises(lins.LinsError, match="unknown reduction 'mean': sum, avg, min, max"):
        lins.Partial("mean")


def test_two_shards_of_one_dimension_nest_in_mesh_order():
    mesh = lins.Mesh((2, 4), ("node", "gpu"))
    layout = lins.Layout([lins.Shard(-1), lins.Shard(0)], shape=(8,), mesh=mesh)
    assert str(layout) == "S0(node,gpu)"


@pytest.mark.parametrize(
    "placements, message",
    [
        ([lins.Shard(0)], r"1 placements for Mesh\(node=2, gpu=4\): give one per axis, 2"),
        ([lins.Shard(1), lins.Replicate()], r"Shard\(1\) is outside .*: shape \(8,\) has 1"),
        ([lins.Shard(-2), lins.Replicate()], r"Shard\(-2\) is outside"),
    ],
)
def test_bad_placement_lists_are_refused(placements, message):
    with pytest.raises(lins.LinsError, match=message):
        lins.Layout(placements, shape=(8,), mesh=lins.Mesh((2, 4), ("node", "gpu")))


@pytest.mark.parametrize(
    "text", ["F(gpu)", "O(gpu; 1)", "S0(gpu,node)", "S0(gpu:2)", "+sum(gpu:2)"]
)
def test_layouts_beyond_placement_lists_say_so(text):
    layout = lins.Layout(text, shape=(8,), mesh=lins.Mesh((2, 4), ("node", "gpu")))
    with pytest.raises(lins.LinsError, match="has no placement list: ") as error:
        _ = layout.placements
    assert text in str(error.value)


@pytest.mark.parametrize(
    "text, caret, message",
    [
        ("", 0, "an empty layout: write R for replicated"),
        ("R R", 2, "R stands alone: axes that no term names are replicated"),
        ("S0(gpu) R", 8, "expected S<dim>(axes), F(axes), O(axes; owner), +op(axes) or R"),
        ("T0(gpu)", 0, "expected S<dim>(axes)"),
        ("S(gpu)", 1, "expected the dimension to shard, a whole number"),
        ("S2(gpu)", 0, "S2 is outside the tensor's dimensions: shape (8, 4) has 2"),
        ("S0 gpu", 3, "expected '('"),
        ("S0(gpu", 6, "expected ')'"),
        ("S0()", 3, "expected an axis: Mesh(node=2, gpu=4) has node, gpu"),
        ("S0(tpu)", 3, "unknown axis 'tpu'"),
        ("S0(node,tpu)", 8, "unknown axis 'tpu'"),
        ("S0(gpu:3)", 3, "sub-axis gpu:3@1 does not divide axis 'gpu' of size 4"),
        ("S0(gpu) S1(gpu)", 8, "axis 'gpu' is used twice"),
        ("S0(gpu) S0(node)", 8, "S0 appears twice"),
        ("S0(gpu)+sum(node)", 7, "expected a space between terms"),
        ("S0(node) +mean(gpu)", 9, "unknown reduction 'mean': sum, avg, min, max, product, band"),
        ("+sum()", 5, "expected an axis"),
        ("F(gpu; 0)", 8, "expected '/'"),
        ("F(gpu; 0/33)", 0, "F's total 33 is not a multiple of its group of 4"),
        ("F(gpu; 8/36)", 0, "F's window [8, 40) of shape (8, 4) does not fit its total of 36"),
        ("F(gpu) S0(node)", 7, "a layout has S terms, or one F, or one O, never a mixture"),
        ("O(gpu)", 5, "expected ';'"),
        ("O(gpu; x)", 7, "expected the owner's index, a whole number"),
        ("O(gpu; 4)", 7, "owner 4 is outside its group of 4"),
    ],
)
def test_errors_in_notation_point_at_the_character(text, caret, message):
    with pytest.raises(lins.LinsError) as error:
        lins.Layout(text, shape=(8, 4), mesh=lins.Mesh((2, 4), ("node", "gpu")))
    assert isinstance(error.value, ValueError)
    why, shown, pointer = str(error.value).split("\n")
    assert message in why
    assert shown == "  " + text
    assert pointer == "  " + " " * caret + "^"


def test_bad_shapes_and_ranks_are_refused():
    with pytest.raises(lins.LinsError, match=r"negative size in shape \(2, -1\)"):
        lins.Layout("R", shape=(2, -1), mesh=SQUARE)
    layout = lins.Layout("R", shape=(2,), mesh=SQUARE)
    for call in (layout.ranges, layout.local_shape):
        for rank in (-1, 4):
            with pytest.raises(lins.LinsError, match=f"rank {rank} is outside"):
                call(rank)
