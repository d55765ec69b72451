"""The rules of a training step, and small models that broke other systems."""

import functools

import lins
import models
import pytest
import torch
from models import ADAM, AXES, SIGN_DESCENT, Stack
from torch import nn
from torch.utils.checkpoint import checkpoint

PLANS = ["ddp", "zero1", "zero2", "zero3", "hsdp", "P=1 G=2x1 OS=4", "P=2x1 G=4 OS=4"]


def everywhere(check, shape=(2, 2), plans=PLANS):
    """Results of check(mesh, plan) by rank, each by plan."""
    return lins.testing.run(shape, AXES, lambda mesh: {plan: check(mesh, plan) for plan in plans})


def agree(check, alone, shape=(2, 2), plans=PLANS, close=False):
    """check(mesh, plan) gives on every rank what alone() gives."""
    want = alone()
    assert_ = models.assert_close if close else models.assert_equal
    for rank, results in enumerate(everywhere(check, shape, plans)):
        for plan, got in results.items():
            assert_(got, want, f"{plan} rank {rank}")


def mean_gradients(make, loss, ranks=4):
    """Gradients of a single process: the mean over ranks of loss(model, rank)."""
    model = make()
    for rank in range(ranks):
        loss(model, rank).backward()
    return {n: None if p.grad is None else p.grad / ranks for n, p in model.named_parameters()}


def sharded_gradients(make, loss, mesh, plan, **options):
    model = lins.lins_shard(make(), mesh, plan, **options)
    loss(model, mesh.rank).backward()
    lins.clip_grad_norm_(model, 1e30)  # finds out what no rank has used
    return models.gradients(model)


def whole_loss(model, rank):
    return models.loss_of(model, *models.batch(0, 0, rank, True), True)


whole_stack = functools.partial(Stack, whole=True)


# --- rule 1: complete while computing, freed after


def test_cut_parameters_are_complete_in_forward_and_freed_after():
    def check(mesh):
        model = whole_stack()
        want = models.clone(model.named_parameters())
        seen = []

        def look(module, _):
            seen.append(torch.equal(module.up.weight, want[f"blocks.{len(seen) % 2}.up.weight"]))

        lins.lins_shard(model, mesh, "zero3")
        for block in model.blocks:
            block.register_forward_pre_hook(look)
        loss = whole_loss(model, 0)
        for action in (lambda: model.blocks[0].up.weight + 1, lambda: model.inp.bias.tolist()):
            with pytest.raises(
                RuntimeError, match=r"cut over 4 ranks and not gathered.*lins\.unsharded"
            ):
                action()
        loss.backward()
        with pytest.raises(RuntimeError, match=r"unit 'blocks\.1'"):
            print(model.blocks[1].down.weight)
        held = lins.memory(model)
        assert held["buffers"] == held["live_leases"] == 0
        return seen

    assert lins.testing.run((2, 2), AXES, check) == [[True, True]] * 4


def test_parameters_that_are_not_cut_can_always_be_read():
    def check(mesh):
        model = whole_stack()
        want = models.clone(model.named_parameters())
        lins.lins_shard(model, mesh, "zero2")
        models.assert_equal(models.clone(model.named_parameters()), want)

    lins.testing.run((2, 2), AXES, check)


def test_unsharded_reads_and_writes():
    def check(mesh, plan):
        model = whole_stack()
        want = models.clone(model.named_parameters())
        lins.lins_shard(model, mesh, plan)
        with lins.unsharded(model):
            models.assert_equal(models.clone(model.named_parameters()), want)
        with lins.unsharded(model.blocks[0], writeback=True), torch.no_grad():
            for p in model.blocks[0].parameters():
                p.mul_(3)
        for name in want:
            if name.startswith("blocks.0"):
                want[name] *= 3
        models.assert_equal(models.parameters(model), want)
        with lins.unsharded(model), lins.unsharded(model.blocks[1]):
            models.assert_equal(models.clone(model.named_parameters()), want)
        return True

    everywhere(check)


def test_what_unsharded_does_not_write_back_is_lost_where_parameters_are_cut():
    def check(mesh):
        model = lins.lins_shard(whole_stack(), mesh, "zero3")
        want = models.parameters(model)
        with lins.unsharded(model), torch.no_grad():
            model.head.bias.fill_(100)
        models.assert_equal(models.parameters(model), want)
        with (
            pytest.raises(ZeroDivisionError),
            lins.unsharded(model, writeback=True),
            torch.no_grad(),
        ):
            model.head.bias.fill_(100)
            raise ZeroDivisionError
        models.assert_equal(models.parameters(model), want)
        assert lins.memory(model)["live_leases"] == 0

    lins.testing.run((2, 2), AXES, check)


# --- rules 2 and 3, case 22: how far each micro-batch reduces


def records(model, mesh, count, divisor=None):
    out = []
    for m in range(count):
        with lins.trace() as t, lins.micro_batch(model, index=m, count=count, divisor=divisor):
            models.loss_of(model, *models.batch(0, m, mesh.rank, True), True).backward()
        out.append([(r.op, r.axes, r.unit) for r in t.records if r.role == "reduce"])
    return out


@pytest.mark.parametrize(
    "plan, each, last",
    [
        ("ddp", [], [("all_reduce", "node,gpu")]),
        ("zero1", [], [("reduce_scatter", "gpu"), ("reduce_scatter", "node")]),
        ("zero2", [("reduce_scatter", "gpu"), ("reduce_scatter", "node")], []),
        ("hsdp", [("reduce_scatter", "gpu")], [("all_reduce", "node")]),
        ("P=1 G=2x1 OS=4", [("reduce_scatter", "gpu")], [("reduce_scatter", "node")]),
    ],
)
def test_micro_batches_before_the_last_reduce_no_further_than_g(plan, each, last):
    def expand(pairs):
        # As few steps as the planner likes over these axes; one flattened step is as good as two.
        return {axis for _, axes in pairs for axis in axes.split(",")}

    def check(mesh):
        model = lins.lins_shard(whole_stack(depth=1), mesh, plan)
        out = records(model, mesh, 3)
        for m, got in enumerate(out):
            want = each + (last if m == 2 else [])
            by_unit = {unit: [r[:2] for r in got if r[2] == unit] for unit in ("blocks.0", "root")}
            for unit, steps in by_unit.items():
                assert expand(steps) == expand(want), (plan, m, unit, steps)
                kinds = {kind for kind, _ in steps}
                assert bool(kinds) == bool(want)
        return len(out[2])

    assert set(lins.testing.run((2, 2), AXES, check)) != {0}


def test_a_shard_group_of_size_one_still_reduces_over_the_replicas():
    def check(mesh):
        model = lins.lins_shard(whole_stack(depth=1), mesh, "P=1 G=1 OS=1")
        return [len(r) for r in records(model, mesh, 3)]

    # One all-reduce for each unit, after the last micro-batch only.
    assert lins.testing.run((4, 1), AXES, check) == [[0, 0, 2]] * 4
    agree(
        functools.partial(sharded_gradients, whole_stack, whole_loss),
        functools.partial(mean_gradients, whole_stack, whole_loss),
        shape=(4, 1),
        plans=["ddp", "hsdp", "zero3"],
    )


def test_the_divisor_replaces_ranks_times_micro_batches():
    def check(mesh):
        out = []
        for divisor in (None, 1, 2):
            model = lins.lins_shard(whole_stack(), mesh, "zero3")
            records(model, mesh, 2, divisor)
            out.append(models.gradients(model))
        return out

    for mean, plain, half in lins.testing.run((2, 2), AXES, check):
        models.assert_equal({n: g * 8 for n, g in mean.items()}, plain)
        models.assert_equal({n: g * 2 for n, g in half.items()}, plain)


def test_a_loss_divided_by_the_global_token_count_equals_the_single_process():
    # Ranks with 3 and 5 valid tokens; 8 is a power of two, so all is exact.
    tokens = [models.batch(0, 0, rank, True, rows=n) for rank, n in enumerate((3, 5))]
    model = whole_stack()
    x, y = (torch.cat(parts) for parts in zip(*tokens, strict=True))
    (models.loss_of(model, x, y, True) / 8).backward()
    want = {n: p.grad for n, p in model.named_parameters()}

    def check(mesh):
        model = lins.lins_shard(whole_stack(), mesh, "zero2")
        with lins.micro_batch(model, index=0, count=1, divisor=1):
            (models.loss_of(model, *tokens[mesh.rank], True) / 8).backward()
        return models.gradients(model)

    for got in lins.testing.run((1, 2), AXES, check):
        models.assert_equal(got, want)


# --- rule 4, case 20: groups of size one


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1)], ids=str)
def test_meshes_with_axes_of_one_and_128_micro_batches_double_nothing(shape):
    ranks = shape[0] * shape[1]
    options = {"whole": True, "micro_batches": 128, "steps": 1, "settings": SIGN_DESCENT}
    make = functools.partial(Stack, depth=1, d=2, whole=True)
    want_grads, want = models.train_alone(ranks, model=make(), **options)

    def check(mesh):
        return [models.train(mesh, p, model=make(), **options) for p in ("ddp", "zero3")]

    for results in lins.testing.run(shape, AXES, check):
        for grads, params in results:
            models.assert_equal(grads[0], want_grads[0])
            models.assert_equal(params, want)


def test_one_rank_neither_communicates_nor_aliases():
    def check(mesh):
        model = lins.lins_shard(whole_stack(), mesh, "zero3")
        with lins.trace() as t:
            models.backward(model, 0, 0, 2, whole=True)
            grads = models.gradients(model)
            models.backward(model, 1, 0, 1, whole=True)
        assert t.records == []
        fresh = whole_stack()
        for m in range(2):
            models.loss_of(fresh, *models.batch(0, m, 0, True), True).backward()
        models.assert_equal(grads, {n: p.grad / 2 for n, p in fresh.named_parameters()})

    lins.testing.run((1, 1), AXES, check)


# --- rules 5 and 6, cases 30 and 31: replicas, delays, buffers


def test_replicas_hold_identical_bits():
    def check(mesh, plan):
        model = lins.lins_shard(Stack(), mesh, plan)
        opt = lins.AdamW(model, **ADAM)
        out = {}
        for step in range(2):
            models.backward(model, step, mesh.rank, 3)
            for name, s in lins.states(model).items():
                for kind in ("param", "grad", "exp_avg", "exp_avg_sq"):
                    x = getattr(s, kind)
                    ranges = tuple(x.layout.ranges(mesh.rank))
                    out[step, name, kind, ranges] = x.to_local().clone()
            opt.step()
        return out

    results = everywhere(check)
    shared = 0
    for plan in PLANS:
        for key, value in results[0][plan].items():
            for rank in (1, 2, 3):
                if key in results[rank][plan]:
                    shared += value.numel() > 0
                    assert torch.equal(results[rank][plan][key], value), (plan, key)
    assert shared > 100


@pytest.mark.parametrize("role", ["gather", "reduce", "update", "other"])
def test_a_delay_before_any_collective_changes_no_value(role):
    options = {"whole": True, "steps": 2, "micro_batches": 2, "settings": SIGN_DESCENT}
    _, want = models.train_alone(4, **options)

    def check(mesh, plan):
        with lins.testing.delay(role=role, seconds=0.002 * mesh.rank):
            return models.train(mesh, plan, prefetch=2, **options)[1]

    plans = ["zero1", "zero3", "P=2x1 G=2x1 OS=4"]
    for results in everywhere(check, plans=plans):
        for plan, got in results.items():
            models.assert_equal(got, want, plan)


def test_an_update_ends_before_the_next_gather_begins():
    def check(mesh):
        model = lins.lins_shard(whole_stack(), mesh, "P=2x1 G=2x1 OS=4", units="linear")
        opt = lins.AdamW(model, **SIGN_DESCENT)
        models.backward(model, 0, mesh.rank, whole=True)
        with lins.trace() as t, lins.testing.delay(role="update", seconds=0.01):
            opt.step()
            models.backward(model, 1, mesh.rank, whole=True)
        updates = {r.unit: r.end for r in t.records if r.role == "update"}
        gathers = [r for r in t.records if r.role == "gather"]
        assert updates and gathers
        for r in gathers:
            assert r.unit == "root" or updates[r.unit] <= r.start

    lins.testing.run((2, 2), AXES, check)


@pytest.mark.parametrize("plan", ["zero2", "zero3"])
def test_peak_buffers_do_not_grow_with_depth(plan):
    def check(mesh):
        out = []
        for depth in (4, 12):
            model = lins.lins_shard(Stack(depth=depth), mesh, plan, prefetch=1)
            for step in range(2):
                models.backward(model, step, mesh.rank, 2)
            memory = lins.memory(model)
            out.append((memory["peak_buffers"], memory["peak_leases"]))
        return out

    for few, many in lins.testing.run((2, 2), AXES, check):
        # When buffers are given back depends on timing: a bound by units, which are 4 and 12.
        unit = 4 * (2 * 25 + 5 + 1)
        assert many[1] <= few[1] + 2
        assert many[0] <= few[0] + 2 * unit


def test_a_hundred_steps_keep_memory_flat():
    def check(mesh):
        model = lins.lins_shard(Stack(depth=2), mesh, "P=2x1 G=2x1 OS=4")
        opt = lins.AdamW(model)
        seen = []
        for step in range(100):
            models.backward(model, step % 5, mesh.rank, 2)
            lins.clip_grad_norm_(model, 1.0)
            opt.step()
            opt.zero_grad()
            if step % 10 == 9:
                seen.append(lins.memory(model))
        return seen

    for seen in lins.testing.run((2, 2), AXES, check):
        flat = [
            {k: v for k, v in m.items() if not k.startswith("peak") and k != "pooled"} for m in seen
        ]
        assert all(m == flat[0] for m in flat)
        pooled = [m["pooled"] for m in seen]
        assert pooled[-1] <= 2 * pooled[1]
        assert all(m["live_leases"] == 0 for m in seen)


# --- rule 7: the same order on every rank, whatever parameters each uses


class Choosy(nn.Module):
    """Which layers are used is up to the caller."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.pick = nn.ModuleList(Pick() for _ in range(2))
        self.never = nn.Linear(3, 3)
        models.fill(self, whole=True, seed=3)

    def forward(self, x, which):
        x = self.first(x)
        for pick in self.pick:
            x = pick(x, which)
        return x


class Pick(nn.Module):
    def __init__(self):
        super().__init__()
        self.options = nn.ParameterDict({k: nn.Parameter(torch.zeros(3, 3)) for k in "abc"})

    def forward(self, x, which):
        return x @ self.options[which]


def test_parameters_used_by_some_ranks_only_or_by_none():
    def loss(model, rank):
        x, _ = models.batch(0, 0, rank, True)
        return model(x, "ab"[rank % 2]).sum()

    def check(mesh, plan):
        model = lins.lins_shard(Choosy(), mesh, plan)
        loss(model, mesh.rank).backward()
        early = models.gradients(model)
        lins.clip_grad_norm_(model, 1e9)
        return early, models.gradients(model)

    want = mean_gradients(Choosy, loss)
    assert want["pick.0.options.c"] is None
    zeros = {n: torch.zeros(3, 3) if "pick" in n else None for n in want}
    zeros["never.weight"], zeros["never.bias"] = torch.zeros(3, 3), torch.zeros(3)
    for results in everywhere(check):
        for plan, (early, late) in results.items():
            models.assert_equal(late, want, plan)
            filled = {n: zeros[n] if g is None else g for n, g in want.items()}
            models.assert_equal(early, filled, plan)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_parameter_used_first_in_the_last_micro_batch(micro_batches):
    def losses(model, rank):
        for m in range(micro_batches):
            x, _ = models.batch(0, m, rank, True)
            yield model(x, "b" if m + 1 == micro_batches and rank == 2 else "a").sum()

    def alone():
        model = Choosy()
        for rank in range(4):
            for loss in losses(model, rank):
                loss.backward()
        return {
            n: None if p.grad is None else p.grad / (4 * micro_batches)
            for n, p in model.named_parameters()
        }

    def check(mesh, plan):
        model = lins.lins_shard(Choosy(), mesh, plan)
        opt = lins.AdamW(model, **SIGN_DESCENT)
        for m, loss in enumerate(losses(model, mesh.rank)):
            with lins.micro_batch(model, index=m, count=micro_batches):
                loss.backward()
        opt.step()
        return models.gradients(model), models.parameters(model)

    want = alone()
    before = models.clone(Choosy().named_parameters())
    moved = {n: p if want[n] is None else p - want[n].sign() for n, p in before.items()}
    for results in everywhere(check):
        for plan, (grads, params) in results.items():
            models.assert_equal(grads, want, plan)
            models.assert_equal(params, moved, plan)


# --- unusual parameters


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([models.Block(4, True)])
        self.head = nn.Linear(4, 5, bias=False)
        models.fill(self, whole=True, seed=1)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.blocks[0](self.embed(ids)))


@pytest.mark.parametrize("units", ["block", "linear"])
def test_every_row_of_a_tied_embedding_is_updated_once(units):
    def step(model, opt, rank):
        generator = torch.Generator().manual_seed(rank)
        ids = torch.randint(0, 5, (3,), generator=generator)
        y = torch.randint(-2, 3, (3, 5), generator=generator)
        return (model(ids) * y).sum()

    def alone():
        model = Tied()
        opt = torch.optim.AdamW(model.parameters(), **SIGN_DESCENT)
        for rank in range(2):
            (step(model, opt, rank) / 2).backward()
        opt.step()
        return models.clone(model.named_parameters())

    def check(mesh, plan):
        model = lins.lins_shard(Tied(), mesh, plan, units=units)
        opt = lins.AdamW(model, **SIGN_DESCENT)
        step(model, opt, mesh.rank).backward()
        opt.step()
        assert model.head.weight is model.embed.weight
        return models.parameters(model)

    agree(check, alone, shape=(1, 2), plans=["ddp", "zero1", "zero2", "zero3"])


class Odd(nn.Module):
    """A scalar, an empty one, one of stride (1, 4), and a frozen layer of another dtype."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.strided = nn.Parameter(torch.arange(12.0).view(3, 4).t())
        self.blocks = nn.ModuleList([nn.Linear(3, 3)])
        self.frozen = nn.Linear(3, 3).to(torch.bfloat16)
        self.frozen.requires_grad_(False)
        with torch.no_grad():
            self.blocks[0].weight.copy_(torch.eye(3))
            self.blocks[0].bias.fill_(1)
            self.frozen.weight.copy_(torch.tensor([[1.0, 0, 2], [0, 1, 0], [0, 0, 1]]))
            self.frozen.bias.fill_(0)

    def forward(self, x):
        x = self.frozen(x.bfloat16()).float()
        return self.scale * (self.blocks[0](x) @ self.strided.t()).sum() + self.nothing.sum()


def test_scalar_empty_strided_and_frozen_parameters():
    assert Odd().strided.stride() == (1, 4)

    def loss(model, rank):
        return model(models.batch(0, 0, rank, True)[0])

    def step(model, opt):
        opt.step()
        return model.frozen.weight.dtype

    def alone():
        model = Odd()
        opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **SIGN_DESCENT)
        for rank in range(4):
            (loss(model, rank) / 4).backward()
        opt.step()
        return models.clone(model.named_parameters())

    def check(mesh, plan):
        model = lins.lins_shard(Odd(), mesh, plan)
        opt = lins.AdamW(model, **SIGN_DESCENT)
        loss(model, mesh.rank).backward()
        assert lins.states(model)["frozen.weight"].grad is None
        opt.step()
        return models.parameters(model)

    agree(check, alone)


def test_parameters_smaller_than_the_group_leave_empty_shards():
    # (2, 8) over 4 ranks, and three elements over four ranks: rank 3 holds padding only.
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 2, bias=False), nn.Linear(2, 1)])
            models.fill(self, whole=True, seed=5)

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))

    def loss(model, rank):
        return model(models.batch(0, 0, rank, True, width=8)[0]).sum()

    def alone():
        model = Small()
        opt = torch.optim.AdamW(model.parameters(), **SIGN_DESCENT)
        for rank in range(4):
            (loss(model, rank) / 4).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        opt.step()
        return {**models.clone(model.named_parameters()), "norm": norm}

    def check(mesh, plan):
        model = lins.lins_shard(Small(), mesh, plan)
        opt = lins.AdamW(model, **SIGN_DESCENT)
        loss(model, mesh.rank).backward()
        norm = lins.clip_grad_norm_(model, 1e9)
        opt.step()
        if plan == "zero3":
            bias = lins.states(model)["blocks.1.bias"]
            assert (bias.param.to_local().numel() > 0) == (mesh.rank == 1)  # slots go gpu first
            assert lins.memory(model)["padding"] > 0
        return {**models.parameters(model), "norm": norm}

    agree(check, alone)


def test_double_precision_parameters():
    options = {"steps": 2, "settings": ADAM}
    _, want = models.train_alone(4, **options)

    def loss(model, rank):
        x, y = models.batch(0, 0, rank)
        return models.loss_of(model, x.double(), y.double())

    def check(mesh, plan):
        model = lins.lins_shard(Stack().double(), mesh, plan)
        opt = lins.AdamW(model, **ADAM)
        loss(model, mesh.rank).backward()
        opt.step()
        return models.parameters(model)

    model = Stack().double()
    opt = torch.optim.AdamW(model.parameters(), **ADAM)
    for rank in range(4):
        (loss(model, rank) / 4).backward()
    opt.step()
    want = models.clone(model.named_parameters())
    for results in everywhere(check, plans=["ddp", "zero3"]):
        for plan, got in results.items():
            models.assert_close(got, want, plan, tolerance=1e-14)


# --- how modules are called


class Caller(Stack):
    """Calls its blocks in one of several ways."""

    def __init__(self, how):
        super().__init__(whole=True)
        self.how = how

    def forward(self, x):
        x = self.inp(x)
        first, second = self.blocks
        if self.how == "twice":
            x = first(second(first(x)))
        elif self.how == "reversed":
            x = first(second(x))
        elif self.how == "skipped":
            x = second(x)
        elif self.how == "nested list":
            x = torch.stack([first(x), second(x)]).sum(0)
        else:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return self.head(x)


@pytest.mark.parametrize(
    "how", ["twice", "reversed", "skipped", "nested list", "checkpointed", "reentrant"]
)
def test_ways_to_call_units(how):
    make = functools.partial(Caller, how)
    agree(
        functools.partial(sharded_gradients, make, whole_loss, prefetch=2),
        functools.partial(mean_gradients, make, whole_loss),
    )


@pytest.mark.parametrize("overlap", [True, False])
def test_a_checkpointed_unit_called_twice_gathers_once_per_use(overlap):
    class Twice(Stack):
        def forward(self, x):
            x = self.inp(x)
            for _ in range(2):
                x = checkpoint(self.blocks[0], x, use_reentrant=False)
            return self.head(x)

    make = functools.partial(Twice, depth=1, whole=True)

    def check(mesh, plan):
        model = lins.lins_shard(make(), mesh, plan, overlap=overlap)
        with lins.trace() as t:
            loss = whole_loss(model, mesh.rank)
        forward = sum(r.role == "gather" and r.unit == "blocks.0" for r in t.records)
        with lins.trace() as t:
            loss.backward()
        backward = sum(r.role == "gather" and r.unit == "blocks.0" for r in t.records)
        assert 1 <= forward <= 2
        assert 1 <= backward <= 2
        return models.gradients(model)

    agree(check, lambda: mean_gradients(make, whole_loss), plans=["P=2x1 G=2x1 OS=4", "hsdp"])


def test_checkpointing_inside_a_unit():
    class Inside(models.Block):
        def forward(self, x):
            return x + checkpoint(lambda t: self.down(self.up(t)), x, use_reentrant=False)

    def make():
        model = whole_stack()
        model.blocks = nn.ModuleList(Inside(5, True) for _ in range(2))
        return models.fill(model, True)

    agree(
        functools.partial(sharded_gradients, make, whole_loss),
        functools.partial(mean_gradients, make, whole_loss),
    )


def test_two_forwards_of_the_root_before_one_backward():
    def loss(model, rank):
        return whole_loss(model, rank) + 2 * whole_loss(model, rank + 1)

    agree(
        functools.partial(sharded_gradients, whole_stack, loss),
        functools.partial(mean_gradients, whole_stack, loss),
    )


def test_two_backwards_of_two_forwards_are_two_micro_batches():
    def check(mesh, plan):
        model = lins.lins_shard(whole_stack(), mesh, plan)
        losses = [whole_loss(model, mesh.rank), whole_loss(model, mesh.rank + 1)]
        for i, loss in enumerate(losses):
            with lins.micro_batch(model, index=i, count=2):
                loss.backward()
        return models.gradients(model)

    def alone():
        out = mean_gradients(
            whole_stack, lambda model, rank: whole_loss(model, rank) + whole_loss(model, rank + 1)
        )
        return {n: g / 2 for n, g in out.items()}

    agree(check, alone)


def test_forwards_without_gradients():
    def check(mesh, plan):
        model = lins.lins_shard(whole_stack(), mesh, plan)
        x, _ = models.batch(0, 0, 0, True)
        want = whole_stack()(x)
        model.eval()
        with torch.no_grad():
            assert torch.equal(model(x), want)
        with torch.inference_mode():
            assert torch.equal(model(x), want)
        model.train()
        with torch.no_grad():
            model(x)
        whole_loss(model, mesh.rank).backward()
        assert lins.memory(model)["live_leases"] == 0
        return models.gradients(model)

    agree(check, functools.partial(mean_gradients, whole_stack, whole_loss))


def test_inputs_that_require_gradients_get_them():
    x0, y = models.batch(0, 0, 0, True)
    x0.requires_grad_()
    models.loss_of(whole_stack(), x0, y, True).backward()

    def check(mesh):
        model = lins.lins_shard(whole_stack(), mesh, "zero3")
        x = x0.detach().clone().requires_grad_()
        models.loss_of(model, x, y, True).backward()
        assert torch.equal(x.grad, x0.grad)

    lins.testing.run((2, 2), AXES, check)


class Trap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ZeroDivisionError("trap in backward")


class Failing(Stack):
    where = None

    def forward(self, x):
        x = self.blocks[0](self.inp(x))
        if self.where == "forward":
            raise ZeroDivisionError("trap in forward")
        if self.where == "backward":
            x = Trap.apply(x)
        return self.head(self.blocks[1](x))


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("overlap", [True, False])
def test_an_exception_in_a_model_is_followed_by_a_good_step(where, overlap):
    make = functools.partial(Failing, whole=True)

    def check(mesh, plan):
        model = lins.lins_shard(make(), mesh, plan, overlap=overlap)
        model.where = where
        with pytest.raises(ZeroDivisionError, match=f"trap in {where}"):
            whole_loss(model, mesh.rank).backward()
        model.where = None
        whole_loss(model, mesh.rank).backward()
        assert lins.memory(model)["live_leases"] == 0
        return models.gradients(model)

    agree(check, functools.partial(mean_gradients, make, whole_loss))


def test_outputs_may_be_any_structure():
    class Structured(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Inner(), Inner()])
            models.fill(self, whole=True, seed=2)

        def forward(self, x):
            state = {"x": x, "seen": []}
            for block in self.blocks:
                state = block(state=state, flag=True)
            return state

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, *, state, flag):
            assert flag
            x = self.linear(state["x"])
            return {"x": x, "seen": [*state["seen"], x]}

    def loss(model, rank):
        out = model(models.batch(0, 0, rank, True)[0])
        return out["x"].sum() + sum(t.sum() for t in out["seen"])

    agree(
        functools.partial(sharded_gradients, Structured, loss),
        functools.partial(mean_gradients, Structured, loss),
    )


# --- dtypes


def test_bf16_parameters_keep_fp32_masters():
    def check(mesh, plan):
        model = lins.lins_shard(Stack(), mesh, plan, param_dtype=torch.bfloat16)
        opt = lins.AdamW(model, **ADAM)
        start = models.clone(Stack().named_parameters())
        masters = {n: s.master.full_tensor() for n, s in lins.states(model).items()}
        models.assert_equal(masters, start)
        for step in range(3):
            x, y = models.batch(step, 0, mesh.rank)
            out = model(x)
            assert out.dtype == torch.bfloat16
            nn.functional.mse_loss(out.float(), y).backward()
            opt.step()
        states = lins.states(model)
        for s in states.values():
            assert (s.param.dtype, s.master.dtype) == (torch.bfloat16, torch.float32)
            assert s.exp_avg.dtype == torch.float32
            assert torch.equal(s.param.full_tensor(), s.master.full_tensor().bfloat16())
        return {n: s.master.full_tensor().clone() for n, s in states.items()}

    # The same casts in one process: bf16 working copies of fp32 masters, fp32 sums of bf16
    # gradients.
    masters = Stack()
    work = Stack().bfloat16()
    opt = torch.optim.AdamW(masters.parameters(), **ADAM)
    for step in range(3):
        for p in masters.parameters():
            p.grad = torch.zeros_like(p)
        for rank in range(4):
            x, y = models.batch(step, 0, rank)
            nn.functional.mse_loss(work(x.bfloat16()).float(), y).backward()
            for p, w in zip(masters.parameters(), work.parameters(), strict=True):
                p.grad += w.grad.float() / 4
                w.grad = None
        opt.step()
        with torch.no_grad():
            for p, w in zip(masters.parameters(), work.parameters(), strict=True):
                w.copy_(p)
    want = models.clone(masters.named_parameters())
    for results in everywhere(check):
        for plan, got in results.items():
            # Gradients are summed in bf16 (grad_dtype's default), 8 bits: updates of 0.01 agree to
            # some 2^-6.
            models.assert_close(got, want, plan, tolerance=1e-3)


def test_fp32_accumulation_of_bf16_gradients_is_exact():
    def check(mesh, plan):
        model = lins.lins_shard(
            whole_stack(), mesh, plan, param_dtype=torch.bfloat16, grad_dtype=torch.float32
        )
        for m in range(4):
            with lins.micro_batch(model, index=m, count=4, divisor=1):
                # The gradient of the head's bias is the sum of y: 257 needs 9 bits.
                out = model(torch.zeros(1, 3))
                (out.float() * (1 if m else 257)).sum().backward()
        return {"bias": lins.states(model)["head.bias"].grad.full_tensor()}

    # 257 is rounded to 256 in one bf16 gradient; the sum 4 * (256 + 3) = 1036 needs fp32.
    agree(check, lambda: {"bias": torch.tensor([1036.0, 1036.0])})


def test_fp16_and_bf16_models_train_in_their_own_dtype():
    def check(mesh):
        out = []
        for dtype in (torch.bfloat16, torch.float16):
            model = lins.lins_shard(whole_stack().to(dtype), mesh, "zero2")
            opt = lins.AdamW(model, **SIGN_DESCENT)
            x, y = models.batch(0, 0, mesh.rank, True)
            (model(x.to(dtype)) * y).sum().backward()
            opt.step()
            s = lins.states(model)["head.bias"]
            out.append((s.param.dtype == dtype, s.master.dtype))
        return out

    assert lins.testing.run((2, 2), AXES, check) == [[(True, torch.float32)] * 2] * 4


# --- starting values


def test_ranks_start_with_the_values_and_buffers_of_rank_0():
    class Normed(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3)])
            models.fill(self, False, seed)
            self.blocks[1].running_mean.fill_(seed)

    want = models.clone(Normed(0).state_dict().items())

    def check(mesh, plan):
        model = lins.lins_shard(Normed(seed=mesh.rank), mesh, plan)
        return {**models.clone(model.named_buffers()), **models.parameters(model)}

    agree(check, lambda: want)
