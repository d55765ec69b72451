"""Redistribution plans: the table of everyday plans, formulas, bounds, caps and errors."""

import ast
import math
import re
from pathlib import Path

import lins
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

TABLE = Path(__file__).parents[1] / "cases" / "redistribution.txt"
NODES = lins.Mesh((2, 4), ("node", "gpu"))
SQUARE = lins.Mesh((2, 2), ("a", "b"))


def plan(src, dst, shape=(8, 4), mesh=NODES, **options):
    layouts = (lins.Layout(text, shape=shape, mesh=mesh) for text in (src, dst))
    return lins.plan_redistribution(*layouts, **options)


def steps(p):
    return [f"{s.kind}({s.axes})" for s in p.steps]


def table():
    """The lines, each named by the comment above it."""
    behaviour = ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("#"):
            behaviour = line.removeprefix("# ").removeprefix("... ")
        elif line:
            yield pytest.param(line, id=f"{behaviour}: {line.split(' : ')[0]}")


def parse(line):
    """`shape | mesh | src -> dst : steps, bytes` as (shape, mesh, src, dst, steps, bytes)."""
    shape, mesh, rest = (part.strip() for part in line.split("|"))
    layouts, expected = rest.split(" : ")
    src, dst = layouts.split(" -> ")
    want_steps, want_bytes = re.fullmatch(r"(.*), (\d+)", expected).groups()
    sizes = dict(axis.split("=") for axis in mesh.split())
    mesh = lins.Mesh([int(n) for n in sizes.values()], list(sizes))
    want_steps = [] if want_steps == "-" else want_steps.split(" ")
    return ast.literal_eval(shape), mesh, src, dst, want_steps, int(want_bytes)


@pytest.mark.parametrize("line", list(table()))
def test_table(line):
    shape, mesh, src, dst, want_steps, want_bytes = parse(line)
    p = plan(src, dst, shape, mesh, itemsize=4)
    assert steps(p) == want_steps, p
    assert p.recv_bytes == want_bytes, p
    assert p.lower_bound_bytes <= want_bytes, p
    assert (p.src, p.dst) == tuple(lins.Layout(t, shape=shape, mesh=mesh) for t in (src, dst))


def test_table_has_at_least_sixty_lines_and_all_kinds_of_meshes():
    meshes = {parse(param.values[0])[1].shape for param in table()}
    assert len(list(table())) >= 60
    assert {(2, 2), (4, 2), (2, 3), (4, 6, 5)} <= meshes


@pytest.mark.parametrize("itemsize", [1, 2, 8])
def test_bytes_are_elements_times_itemsize(itemsize):
    p = plan("S0(gpu)", "R", itemsize=itemsize)
    assert p.recv_bytes == p.lower_bound_bytes == 24 * itemsize
    assert p.peak_bytes == (8 + 32) * itemsize
    assert [s.bytes for s in p.steps] == [32 * itemsize]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n", [0, 1, 5, 12, 28])
def test_lower_bounds_by_formula(n, k):
    mesh = lins.Mesh((k,), ("x",))
    chunk = -(-n // k)
    short = max(0, n - chunk * (k - 1))

    def bound(src, dst):
        return plan(src, dst, (n,), mesh, itemsize=1).lower_bound_bytes

    assert bound("S0(x)", "R") == n - short
    assert bound("O(x; 0)", "R") == (n if k > 1 else 0)
    assert bound("R", "S0(x)") == 0
    if k > 1:
        # k - 1 receipts an element to reduce it, and one more for every further rank that wants it.
        assert bound("+sum(x)", "R") == max(n, math.ceil(n * (2 * k - 2) / k))
        assert bound("+sum(x)", "S0(x)") == max(chunk, math.ceil(n * (k - 1) / k))


@pytest.mark.parametrize("k", [2, 3, 4, 8])
def test_collectives_on_even_shards_receive_the_lower_bound(k):
    mesh = lins.Mesh((k,), ("x",))
    n = 12 * k
    everyday = [("S0(x)", "R"), ("+sum(x)", "S0(x)"), ("+sum(x)", "R"), ("F(x)", "R")]
    for src, dst in everyday:
        p = plan(src, dst, (n,), mesh)
        assert p.recv_bytes == p.lower_bound_bytes, p


def test_512_rows_over_30_ranks_gather_what_the_empty_rank_lacks():
    mesh = lins.Mesh((30,), ("x",))
    assert plan("S0(x)", "R", (512,), mesh, itemsize=4).recv_bytes == 512 * 4
    assert plan("+sum(x)", "S0(x)", (512,), mesh, itemsize=4).recv_bytes == 29 * 18 * 4


def test_changing_the_sharded_dimension_is_one_all_to_all_on_one_axis():
    mesh = lins.Mesh((2, 4), ("a", "b"))
    shape = (4, 8, 8)
    src = lins.Layout([lins.Shard(1), lins.Shard(1)], shape=shape, mesh=mesh)
    dst = lins.Layout([lins.Shard(1), lins.Shard(2)], shape=shape, mesh=mesh)
    assert steps(lins.plan_redistribution(src, dst)) == ["all_to_all(b)"]


def test_no_layout_on_the_way_is_larger_than_source_and_destination():
    mesh = lins.Mesh((4, 2), ("x", "y"))
    p = plan("S0(y) S2(x)", "S2(x,y)", (16, 16, 16), mesh, itemsize=4)
    share = 16**3 // 8 * 4
    for s in p.steps:
        for layout in (s.before, s.after):
            sizes = [math.prod(layout.local_shape(r)) * 4 for r in range(mesh.size)]
            assert max(sizes) <= share
    assert p.peak_bytes == 2 * share  # one of each, alive at once


def test_other_mesh_is_an_error_that_names_both_meshes():
    other = lins.Mesh((8,), ("gpu",))
    src = lins.Layout("S0(gpu)", shape=(8,), mesh=NODES)
    dst = lins.Layout("S0(gpu)", shape=(8,), mesh=other)
    with pytest.raises(lins.LinsError, match=r"Mesh\(node=2, gpu=4\) and Mesh\(gpu=8\)"):
        lins.plan_redistribution(src, dst)


def test_other_shape_is_an_error_that_names_both_shapes():
    src = lins.Layout("S0(gpu)", shape=(8,), mesh=NODES)
    dst = lins.Layout("S0(gpu)", shape=(8, 1), mesh=NODES)
    with pytest.raises(ValueError, match=r"shape \(8,\) to \(8, 1\)"):
        lins.plan_redistribution(src, dst)


@pytest.mark.parametrize(
    "src, dst, why",
    [
        ("R", "+product(gpu)", "a partial product cannot be made of complete values"),
        ("S0(gpu)", "+bxor(gpu)", "a partial bxor cannot be made of complete values"),
        ("+sum(gpu)", "+max(gpu)", "partial sum is not partial max; redistribute to R first"),
        ("+avg(node,gpu)", "+sum(node)", "partial avg is not partial sum"),
    ],
)
def test_illegal_transitions_name_both_layouts(src, dst, why):
    with pytest.raises(lins.LinsError) as error:
        plan(src, dst)
    for part in (src, dst, why):
        assert part in str(error.value)


@pytest.mark.parametrize("itemsize", [0, -4])
def test_itemsize_must_be_positive(itemsize):
    with pytest.raises(lins.LinsError, match=f"itemsize is {itemsize}, must be at least 1 byte"):
        plan("R", "S0(gpu)", itemsize=itemsize)


def test_a_cap_too_small_names_the_least_that_works():
    line = lins.Mesh((4,), ("gpu",))
    with pytest.raises(lins.LinsError, match="max_peak_bytes=100 is too small") as error:
        plan("S0(gpu)", "R", mesh=line, itemsize=4, max_peak_bytes=100)
    assert "S0(gpu) -> R of (8, 4)" in str(error.value)
    assert str(error.value).endswith(f"the least possible is {(8 + 32) * 4}")
    assert plan("S0(gpu)", "R", mesh=line, itemsize=4, max_peak_bytes=160).peak_bytes == 160


def test_replicas_help_to_stay_under_a_cap():
    free = plan("S0(gpu)", "R", itemsize=4)
    assert steps(free) == ["all_gather(gpu)"] and free.peak_bytes == 160
    p = plan("S0(gpu)", "R", itemsize=4, max_peak_bytes=144)
    assert p.peak_bytes == 144 and p.recv_bytes >= free.recv_bytes


def test_live_bytes_add_the_source_and_what_is_packed_to_the_peak():
    line = lins.Mesh((4,), ("gpu",))
    rows = plan("S0(gpu)", "R", mesh=line, itemsize=4)  # in order: received in place
    assert (rows.peak_bytes, rows.live_bytes) == (32 + 128, 32 + 128)
    columns = plan("S1(gpu)", "R", mesh=line, itemsize=4)  # not in order: the result comes twice
    assert (columns.peak_bytes, columns.live_bytes) == (32 + 128, 32 + 2 * 128)
    swap = plan("S0(gpu)", "S1(gpu)", mesh=line, itemsize=4)  # what is sent and received is packed
    assert (swap.peak_bytes, swap.live_bytes) == (2 * 32, 4 * 32)
    two = plan("+sum(node,gpu)", "S0(gpu)", itemsize=4)  # the source is there to the end
    assert [s.kind for s in two.steps] == ["reduce_scatter", "all_reduce"]
    assert (two.peak_bytes, two.live_bytes) == (128 + 32, 128 + 2 * 32)


class Clock:
    """A profile of a start-up cost and a rate, slower over nodes; keeps what is asked."""

    def __init__(self):
        self.asked = []

    def time(self, op, nbytes, gpus, nodes):
        self.asked.append((op, nbytes, gpus, nodes))
        return 1e-6 + nbytes * (1e-8 if nodes > 1 else 1e-9)


def test_a_profile_gives_seconds_and_is_asked_by_gpus_and_nodes():
    clock = Clock()
    p = plan("S0(gpu)", "R", itemsize=4, profile=clock)
    assert ("all_gather", 128, 4, 1) in clock.asked
    assert {op for op, *_ in clock.asked} <= {"all_gather", "all_to_all"}  # exchange as the latter
    assert p.seconds == p.steps[0].seconds == pytest.approx(1e-6 + 128e-9)
    assert plan("S0(gpu)", "R").seconds == 0


def test_an_exchange_that_replicates_is_priced_by_what_it_fills():
    p = plan("S0(a)", "S0(b)", (8, 4), SQUARE)
    assert [s.bytes for s in p.steps] == [64]
    p = plan("O(a; 0)", "R", (8, 4), SQUARE, profile=Clock())
    assert steps(p) == ["broadcast(a)"]


def test_errors_in_a_profile_reach_the_caller():
    class Broken:
        def time(self, op, nbytes, gpus, nodes):
            raise KeyError(op)

    with pytest.raises(KeyError, match="all_gather"):
        plan("S0(gpu)", "R", profile=Broken())


def test_a_plan_prints_as_a_table():
    text = str(plan("+sum(node,gpu)", "S0(gpu)"))
    assert "+sum(node,gpu) -> S0(gpu) of (8, 4) on Mesh(node=2, gpu=4)" in text
    header, first, *_ = text.splitlines()[1:]
    assert re.split("  +", header.strip()) == [
        "step", "group", "ranks", "layout", "bytes in", "bytes out", "receives", "peak",
        "seconds",
    ]  # fmt: skip
    assert re.split("  +", first.strip()) == [
        "reduce_scatter", "(gpu)", "4", "+sum(node,gpu) -> S0(gpu) +sum(node)",
        "128", "32", "96", "160", "-",
    ]  # fmt: skip
    assert text.endswith("receives 128 bytes, lower bound 128, ratio 1.00, peak 160")


LAYOUTS = [
    "R", "S0(a)", "S0(b)", "S0(a,b)", "S0(b,a)", "S1(a)", "S1(b,a)", "S0(a) S1(b)", "S0(b) S1(a)",
    "F(a)", "F(b,a)", "O(a; 1)", "O(b,a; 2)", "+sum(a)", "+sum(a,b)", "+avg(b)", "+max(a)",
    "S0(a) +sum(b)", "S1(b) +max(a)", "F(a) +sum(b)", "O(b; 0) +sum(a)",
]  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(
    src=st.sampled_from(LAYOUTS),
    dst=st.sampled_from(LAYOUTS),
    shape=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    itemsize=st.sampled_from([1, 2, 4]),
)
def test_any_legal_pair_has_a_plan(src, dst, shape, sizes, itemsize):
    mesh = lins.Mesh(sizes, ("a", "b"))
    layouts = []
    for text in (src, dst):
        try:
            layouts.append(lins.Layout(text, shape=shape, mesh=mesh))
        except lins.LinsError:
            assume(False)  # an owner that this mesh lacks
    try:
        p = lins.plan_redistribution(*layouts, itemsize=itemsize)
    except lins.LinsError as error:
        assert "partial" in str(error)
        assume(False)
    assert p.recv_bytes >= p.lower_bound_bytes
    assert p.recv_bytes <= sum(s.recv_bytes for s in p.steps)
    chain = [p.src, *(s.after for s in p.steps)]
    assert chain[-1] == p.dst and [s.before for s in p.steps] == chain[:-1]
    held = [max(math.prod(x.local_shape(r)) for r in range(mesh.size)) for x in chain]
    assert p.peak_bytes >= max(held) * itemsize
    # Deterministic, free between equals, and within a cap that is as tight as the answer.
    assert repr(lins.plan_redistribution(*layouts, itemsize=itemsize)) == repr(p)
    assert lins.plan_redistribution(p.src, p.src, itemsize=itemsize).recv_bytes == 0
    capped = lins.plan_redistribution(*layouts, itemsize=itemsize, max_peak_bytes=p.peak_bytes)
    assert capped.peak_bytes <= p.peak_bytes


@pytest.mark.parametrize("src", LAYOUTS)
def test_a_cap_is_kept_by_every_step_or_refused(src):
    for dst in LAYOUTS:
        try:
            free = plan(src, dst, (8, 4), SQUARE)
        except lins.LinsError:
            continue
        if not free.steps:
            continue
        for cap in sorted({0, free.peak_bytes // 2, free.peak_bytes * 3 // 4, free.peak_bytes}):
            try:
                p = plan(src, dst, (8, 4), SQUARE, max_peak_bytes=cap)
            except lins.LinsError as error:
                least = int(str(error).rsplit(" ", 1)[1])
                assert cap < least <= free.peak_bytes
                assert plan(src, dst, (8, 4), SQUARE, max_peak_bytes=least).peak_bytes == least
            else:
                assert all(s.peak_bytes <= cap for s in p.steps)
                assert p.peak_bytes <= cap


def costs(texts, shape, mesh):
    """recv_bytes and lower bounds of all legal pairs."""
    out = {}
    for src in texts:
        for dst in texts:
            try:
                p = plan(src, dst, shape, mesh)
            except lins.LinsError:
                continue
            out[src, dst] = (p.recv_bytes, p.lower_bound_bytes)
    return out


@pytest.mark.parametrize("sizes, shape", [((2, 2), (8, 4)), ((4, 2), (16, 16)), ((2, 3), (7, 5))])
def test_a_detour_never_receives_less(sizes, shape):
    cost = costs(LAYOUTS, shape, lins.Mesh(sizes, ("a", "b")))
    for (a, b), (first, _) in cost.items():
        for c in LAYOUTS:
            if (b, c) in cost and (a, c) in cost:
                assert cost[a, c][0] <= first + cost[b, c][0], f"{a} -> {b} -> {c}"


def test_even_powers_of_two_receive_the_lower_bound():
    texts = ["R", "S0(a)", "S0(b)", "S0(a,b)", "S1(a)", "S0(a) S1(b)", "F(a)", "+sum(a)"]
    cost = costs([*texts, "+sum(a,b)"], (16, 16), lins.Mesh((4, 2), ("a", "b")))
    above = {pair for pair, (got, bound) in cost.items() if got > bound}
    # docs/redistribution.md explains both.
    assert above == {("+sum(a)", "S0(a,b)"), ("+sum(a,b)", "+sum(a)")}
