"""What every preset sends, micro-batch by micro-batch: the trace equals formulas that are written
out here, in S (a unit's padded bytes), W = N*R ranks, R ranks of a node, k of the preset, and M.

The order of records is compared too, so these are also proofs that all ranks agree on it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import lins
import models
import pytest
from models import AXES

SHAPES = [(2, 2), (1, 4), (2, 3)]
# models.Stack(depth=2, d=5): elements of each unit, in the order of the forward.
UNITS = {"root": 3 * 5 + 5 + 5 * 2 + 2, "blocks.0": 5 * 5 + 5 + 5 * 5, "blocks.1": 55}
PARAMETERS = 10


class Sent(NamedTuple):
    """One collective of one rank."""

    op: str
    group: tuple[int, ...]
    bytes: int
    received: int


class World:
    """One rank's view: groups of ranks along the chain, which counts the ranks of a node first."""

    def __init__(self, shape, rank):
        self.nodes, self.gpus = shape
        self.size = self.nodes * self.gpus
        self.rank = rank

    def group(self, pieces, of=1):
        """The ranks over which a tensor in `of` pieces is cut further, into `pieces`."""
        if pieces == of:
            return (self.rank,)
        # Position along the chain = rank: nodes are the slower axis, in rank and chain alike.
        first = self.rank // pieces * pieces + self.rank % of
        return tuple(first + i * of for i in range(pieces // of))

    # Each returns a list, empty for a group of one: nobody to talk to.
    def gather(self, nbytes, pieces, of=1):
        g = self.group(pieces, of)
        return [Sent("all_gather", g, nbytes, nbytes - nbytes // len(g))] * (len(g) > 1)

    def scatter(self, nbytes, pieces, of=1):
        g = self.group(pieces, of)
        return [Sent("reduce_scatter", g, nbytes, nbytes - nbytes // len(g))] * (len(g) > 1)

    def sum(self, nbytes, pieces, of=1):
        """An all-reduce, which is a reduce-scatter and an all-gather: 2 S (g-1)/g."""
        g = self.group(pieces, of)
        received = 2 * (nbytes - nbytes // len(g))
        return [Sent("all_reduce", g, nbytes, received)] * (len(g) > 1)

    def broadcasts(self, nbytes, pieces, of=1):
        """Each of the group sends its slot of `nbytes` to the others, in the order of slots."""
        g = sorted(self.group(pieces, of), key=lambda r: (r % self.gpus, r // self.gpus))
        return [
            Sent("broadcast", tuple(sorted(g)), nbytes, 0 if owner == self.rank else nbytes)
            for owner in g
        ] * (len(g) > 1)


class Formula(NamedTuple):
    """What is sent of one unit: at its forward, its backward, after the backward of a micro-batch
    before the last, of the last, and after the optimizer."""

    forward: Sequence[Sent] = ()
    backward: Sequence[Sent] = ()
    each: Sequence[Sent] = ()
    last: Sequence[Sent] = ()
    update: Sequence[Sent] = ()


def planned(preset, w, k, s):
    """Gathers, reduce-scatters and all-reduces of the fewest bytes, as the originals send them."""
    W, R = w.size, w.gpus
    match preset:
        case "ddp":
            return Formula(last=w.sum(s, W))
        case "zero1":
            return Formula(last=w.scatter(s, W), update=w.gather(s, W))
        case "zero2":
            every = w.scatter(s, W)
            return Formula(each=every, last=every, update=w.gather(s, W))
        case "zero3":
            every = w.scatter(s, W)
            return Formula(w.gather(s, W), w.gather(s, W), every, every)
        case "hsdp" | "mics":
            n = R if preset == "hsdp" else k
            every = w.scatter(s, n)
            return Formula(w.gather(s, n), w.gather(s, n), every, every + w.sum(s // n, W, n))
        case "zero++":  # the second gather stays among k ranks
            every = w.scatter(s, W)
            return Formula(w.gather(s, W), w.gather(s, k), every, every)
        case "megatron":
            return Formula(last=w.scatter(s, k) + w.sum(s // k, W, k), update=w.gather(s, k))
        case "paro-nig":
            every = w.scatter(s, R)
            last = every + w.scatter(s // R, W, R)
            return Formula(each=every, last=last, update=w.gather(s, W))
        case "paro-iig":
            gather, every = w.gather(s, R), w.scatter(s, R)
            last = every + w.scatter(s // R, W, R)
            return Formula(gather, gather, every, last, w.gather(s // R, W, R))
        case "paro-igg":
            gather, every = w.gather(s, R), w.scatter(s, W)
            return Formula(gather, gather, every, every, w.gather(s // R, W, R))


def paper(preset, w, k, s):
    """Scatter over P's pieces, all-reduce of which a rank keeps its part, broadcasts by owners."""
    W, R = w.size, w.gpus
    match preset:
        case "ddp":
            return Formula(last=w.sum(s, W))
        case "zero1":
            return Formula(last=w.sum(s, W), update=w.broadcasts(s // W, W))
        case "zero2":
            return Formula(each=w.sum(s, W), last=w.sum(s, W), update=w.broadcasts(s // W, W))
        case "megatron":
            return Formula(last=w.sum(s, W), update=w.broadcasts(s // k, k))
        case "paro-nig":
            return Formula(each=w.sum(s, R), last=w.sum(s, W), update=w.broadcasts(s // W, W))
        case "paro-iig":
            gather, every = w.gather(s, R), w.scatter(s, R)
            last = every + w.sum(s // R, W, R)
            return Formula(gather, gather, every, last, w.broadcasts(s // W, W, R))
        case "paro-igg":
            gather = w.gather(s, R)
            every = w.scatter(s, R) + w.sum(s // R, W, R)
            return Formula(gather, gather, every, every, w.broadcasts(s // W, W, R))
        case _:  # P = G = OS: nothing to select, nothing to bring back
            return planned(preset, w, k, s)


PRESETS = [
    *("ddp", "zero1", "zero2", "zero3", "hsdp", "mics", "zero++", "megatron"),
    *("paro-nig", "paro-iig", "paro-igg"),
]
BACKWARD = ["root", "blocks.1", "blocks.0"]  # the root is whole from the first gradient on
REDUCED = ["blocks.1", "blocks.0", "root"]


def measure(mesh, policy, micro_batches, **options):
    """Records of each forward, each backward, and the update of the second step."""
    model = lins.lins_shard(models.Stack(depth=2), mesh, policy, **options)
    opt = lins.AdamW(model)
    models.backward(model, 0, mesh.rank, micro_batches)
    opt.step()
    opt.zero_grad()
    phases = []
    for m in range(micro_batches):
        with lins.micro_batch(model, index=m, count=micro_batches):
            with lins.trace() as t:
                loss = models.loss_of(model, *models.batch(1, m, mesh.rank))
            phases.append(t.records)
            with lins.trace() as t:
                loss.backward()
            phases.append(t.records)
    with lins.trace() as t:
        opt.step()
    return [*phases, t.records]


def said(mesh, records, role):
    """{unit: what was sent of it} and the order of units, of one role."""
    out = {}
    for r in records:
        if r.role != role:
            continue
        # The axes say the same as the group.
        assert r.group in lins.Mesh(mesh.shape, mesh.axes).groups(r.axes), r
        out.setdefault(r.unit, []).append(Sent(r.op, tuple(sorted(r.group)), r.bytes, r.recv_bytes))
    return out


def check_step(mesh, phases, formulas, micro_batches, what):
    def expect(records, role, field, order):
        want = {unit: list(getattr(formulas[unit], field)) for unit in order}
        got = said(mesh, records, role)
        assert got == {u: sent for u, sent in want.items() if sent}, (what, role, field)
        units = [r.unit for r in records if r.role == role]
        assert units == [u for u in order for _ in want[u]], (what, role, field)

    *passes, update = phases
    for m in range(micro_batches):
        forward, backward = passes[2 * m : 2 * m + 2]
        expect(forward, "gather", "forward", list(UNITS))
        assert {r.role for r in forward} <= {"gather"}
        expect(backward, "gather", "backward", BACKWARD)
        expect(backward, "reduce", "last" if m + 1 == micro_batches else "each", REDUCED)
        # Once per step ranks compare their numbers of micro-batches.
        other = [r.op for r in backward if r.role == "other"]
        assert other == ["all_gather"] * (m == 0), (what, other)
        assert {r.role for r in backward} <= {"gather", "reduce", "other"}
    expect(update, "update", "update", list(UNITS))
    # One small reduction tells whether all gradients are finite, and which exist.
    others = [r for r in update if r.role == "other"]
    assert [r.op for r in others] == ["all_reduce"], (what, others)
    assert others[0].bytes <= 8 * (PARAMETERS + 2)
    assert {r.role for r in update} <= {"update", "other"}


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("family", ["planned", "paper"])
def test_every_preset_sends_what_its_formula_says(family, shape, micro_batches):
    k = 3 if shape[1] == 3 else 2  # must divide the ranks of a node
    formula_of = {"planned": planned, "paper": paper}[family]

    def check(mesh):
        world = World(shape, mesh.rank)
        for preset in PRESETS:
            policy = f"{preset}:{k}" if preset in ("mics", "zero++", "megatron") else preset
            phases = measure(mesh, policy, micro_batches, family=family)
            formulas = {}
            for unit, numel in UNITS.items():
                padded = -(-numel // mesh.size) * mesh.size
                formulas[unit] = formula_of(preset, world, k, 4 * padded)
            check_step(mesh, phases, formulas, micro_batches, f"{policy} {family}")
        return True

    assert all(lins.testing.run(shape, AXES, check))


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_fsdp2_keeps_its_root_between_forward_and_backward(micro_batches):
    # fully_shard's default: units are resharded after their forward, the root is not.
    def check(mesh):
        world = World((2, 2), mesh.rank)
        formulas = {
            unit: planned("zero3", world, 0, 4 * -(-numel // 4) * 4)
            for unit, numel in UNITS.items()
        }
        formulas["root"] = formulas["root"]._replace(backward=())
        phases = measure(mesh, "fsdp2", micro_batches)
        check_step(mesh, phases, formulas, micro_batches, "fsdp2")

    lins.testing.run((2, 2), AXES, check)


def test_fsdp2_is_zero3_in_its_units():
    def check(mesh):
        sent = [
            [
                [(r.role, r.unit, r.op, r.axes, r.bytes) for r in phase if r.unit != "root"]
                for phase in measure(mesh, policy, 2)
            ]
            for policy in ("fsdp2", "zero3")
        ]
        assert sent[0] == sent[1] and sum(map(len, sent[0])) == 2 * 2 * 3

    lins.testing.run((2, 2), AXES, check)


def test_groups_of_the_formulas():
    # (2, 4), rank 6 = GPU 2 of node 1: what the helper above means, written out.
    w = World((2, 4), 6)
    assert w.group(4) == (4, 5, 6, 7)
    assert w.group(8, 4) == (2, 6)
    assert w.group(2) == (6, 7)
    assert w.group(8, 2) == (0, 2, 4, 6)
    assert w.group(8) == tuple(range(8))


@pytest.mark.parametrize("options", [{"overlap": False}, {"prefetch": 0}, {"prefetch": 3}], ids=str)
@pytest.mark.parametrize("preset", ["zero3", "hsdp", "zero++:2", "paro-iig"])
def test_overlap_and_prefetch_send_the_same(preset, options):
    def check(mesh):
        def counts(**options):
            return [
                sorted((r.role, r.unit, r.op, r.axes, r.bytes) for r in phase)
                for phase in measure(mesh, preset, 2, **options)
            ]

        assert counts(**options) == counts()

    lins.testing.run((2, 2), AXES, check)


def test_micro_batches_that_need_nothing_send_nothing():
    def check(mesh):
        for preset in ("ddp", "zero1", "megatron:2"):
            for family in ("planned", "paper"):
                phases = measure(mesh, preset, 4, family=family)
                # The first backward compares the number of micro-batches; 2 and 3 do nothing.
                assert [len(p) for p in phases[:6]] == [0, 1, 0, 0, 0, 0]
                assert {r.role for r in phases[7]} == {"reduce"}

    lins.testing.run((2, 2), AXES, check)


def test_gathered_until_the_backward_gathers_once():
    # FSDP's reshard_after_forward=False: between=1.
    def check(mesh):
        phases = measure(mesh, "zero++:1", 2)
        gathers = [[r.unit for r in p if r.role == "gather"] for p in phases]
        assert gathers == [list(UNITS), [], list(UNITS), [], []]

    lins.testing.run((2, 2), AXES, check)


def test_all_ranks_send_in_the_same_order_whatever_their_speed():
    def check(mesh):
        out = []
        with lins.testing.delay(seconds=0.0005 * (mesh.rank % 3)):
            for policy in ("zero3", "P=1 G=3 OS=6", "paro-iig"):
                for family in ("planned", "paper"):
                    phases = measure(mesh, policy, 2, family=family, units="linear", prefetch=2)
                    records = [r for p in phases for r in p]
                    out.append(
                        [
                            [(r.unit, r.op, r.axes, r.bytes) for r in records if r.role == role]
                            for role in ("gather", "reduce", "update", "other")
                        ]
                    )
        return out

    first, *others = lins.testing.run((2, 3), AXES, check)
    assert all(o == first for o in others)


def test_buckets_of_the_paper_cut_all_reduces():
    numel = UNITS["blocks.0"] + 1  # padded to 56 on four ranks
    spec = lins.ModelSpec(
        units=[lins.Unit("root", UNITS["root"]), lins.Unit("blocks", 55, repeat=2)],
        state_bytes={"param": 4, "grad": 4, "master": 0, "moments": 8},
    )
    profile = lins.Profile.model(nodes=2, gpus_per_node=2)
    cluster = lins.Cluster(nodes=2, gpus_per_node=2, profile=profile)
    plan = lins.Plan.uniform(
        spec, cluster, policy="zero1", family="paper", micro_batches=2, bucket_bytes=100
    )

    def check(mesh):
        phases = measure(mesh, plan, 2)
        sent = [r.bytes for r in phases[3] if r.unit == "blocks.0" and r.role == "reduce"]
        assert sent == [100, 100, 4 * numel - 200]

    lins.testing.run((2, 2), AXES, check)
