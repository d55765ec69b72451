"""Every rule beside torch's own on whole parameters, under every kind of plan."""

import lins
import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import AXES
from optimizers import PLANS, alone, compare, sharded
from torch import nn

EXACT = [
    ("Adam", {"lr": 1e-2, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "betas": (0.3, 0.5), "eps": 1e-3, "maximize": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "maximize": True}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.3, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.7, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
]


@pytest.mark.parametrize("rule, settings", EXACT, ids=str)
def test_equal_to_torch_bit_for_bit(rule, settings):
    want = alone(lambda m: getattr(torch.optim, rule)(m.parameters(), **settings), steps=4)

    def make(model):
        return getattr(lins, rule)(model, **settings)

    compare(lambda mesh, plan: sharded(mesh, plan, steps=4, make=make), want)


@pytest.mark.parametrize("rule", ["AdamW", "Adam"])
def test_fused_is_torchs_fused_but_for_the_last_bit(rule):
    options = {"lr": 0.1, "weight_decay": 0.1, "fused": True}
    want = alone(lambda m: getattr(torch.optim, rule)(m.parameters(), **options), steps=4)

    def check(mesh):
        return sharded(mesh, "zero1", 4, make=lambda m: getattr(lins, rule)(m, **options))

    for got in lins.testing.run((2, 2), AXES, check):
        models.assert_close(got, want, tolerance=4 * 2.0**-23)


BETA = st.floats(0, 0.9999)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["AdamW", "Adam"]),
    options=st.fixed_dictionaries(
        {
            "lr": st.floats(0, 2),
            "betas": st.tuples(BETA, BETA),
            "eps": st.floats(1e-12, 1),
            "weight_decay": st.floats(0, 1),
            "amsgrad": st.booleans(),
            "maximize": st.booleans(),
        }
    ),
)
def test_every_option_of_adam_has_the_bits_of_torch(rule, options):
    want = alone(lambda m: getattr(torch.optim, rule)(m.parameters(), **options), ranks=2)

    def make(model):
        return getattr(lins, rule)(model, **options)

    for got in lins.testing.run((1, 2), AXES, lambda m: sharded(m, "zero2", make=make)):
        models.assert_equal(got, want)


class PlainLion(torch.optim.Optimizer):
    """The algorithm of the paper, line by line."""

    def __init__(self, params, lr, betas, weight_decay=0.0, maximize=False):
        defaults = dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            beta1, beta2 = g["betas"]
            for p in g["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                grad = -p.grad if g["maximize"] else p.grad
                update = (m * beta1 + grad * (1 - beta1)).sign()
                p.copy_(p * (1 - g["lr"] * g["weight_decay"]) - g["lr"] * update)
                m.copy_(m * beta2 + grad * (1 - beta2))


@pytest.mark.parametrize("maximize", [False, True])
def test_lion_is_the_papers(maximize):
    settings = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.2, "maximize": maximize}
    want = alone(lambda m: PlainLion(m.parameters(), **settings), steps=4)
    compare(
        lambda mesh, plan: sharded(mesh, plan, 4, make=lambda m: lins.Lion(m, **settings)), want
    )


# --- rules that see whole matrices


class Dot(nn.Module):
    """<weight, data>: a gradient that is the data."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, x):
        return (self.weight * x).sum()


class Shapes(nn.Module):
    """Parameters of the given shapes, each a unit of its own, beside a root with a matrix."""

    def __init__(self, shapes):
        super().__init__()
        self.root = Dot((5, 3))
        self.blocks = nn.ModuleList(Dot(s) for s in shapes)
        models.fill(self, False)

    def forward(self, xs):
        return sum(m(x) for m, x in zip([self.root, *self.blocks], xs, strict=True))

    def loss(self, step, rank):
        generator = torch.Generator().manual_seed(100 * step + rank)
        shapes = [m.shape for m in [self.root, *self.blocks]]
        return self([torch.randint(-5, 6, s, generator=generator).float() for s in shapes])


def compare_shapes(make_reference, make, shapes, check, plans=PLANS, units="block", ranks=(2, 2)):
    """check(got, want, plan) by plan, after which all plans must agree bit for bit."""
    reference, n = Shapes(shapes), ranks[0] * ranks[1]
    opt = make_reference(reference)
    for step in range(3):
        for rank in range(n):
            reference.loss(step, rank).backward()
        for p in reference.parameters():
            p.grad /= n
        opt.step()
        opt.zero_grad()
    want = models.clone(reference.named_parameters())

    def train(mesh):
        out = []
        for plan in plans:
            model = lins.lins_shard(Shapes(shapes), mesh, plan, units=units)
            opt = make(model)
            for step in range(3):
                model.loss(step, mesh.rank).backward()
                opt.step()
                opt.zero_grad()
            out.append(models.parameters(model))
        return out

    for results in lins.testing.run(ranks, AXES, train):
        for plan, got in zip(plans, results, strict=True):
            check(got, want, plan)
            models.assert_equal(got, results[0], plan)


MATRICES = [(3, 11), (9, 4), (1, 6), (7, 7), (6, 1), (2, 9)]
ADAFACTOR = [
    {},
    {"lr": 0.3, "weight_decay": 0.1, "d": 2.0},
    {"lr": 0.1, "beta2_decay": -0.5, "eps": (1e-3, 0.1), "maximize": True},
]


@pytest.mark.parametrize("settings", ADAFACTOR, ids=str)
def test_adafactor_equals_torchs_under_every_plan(settings):
    compare_shapes(
        lambda m: torch.optim.Adafactor(m.parameters(), **settings),
        lambda m: lins.Adafactor(m, **settings),
        [*MATRICES, (2, 3, 5), (7,), (1,)],
        models.assert_close,
    )


MUON = [{"lr": 0.1}, {"lr": 0.1, "nesterov": False, "momentum": 0.5, "ns_steps": 3}]
MUON += [{"lr": 0.01, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.3}]


@pytest.mark.parametrize("settings", MUON, ids=str)
@pytest.mark.parametrize("units", ["block", lambda m: False], ids=["units", "root only"])
def test_muon_equals_torchs_on_whole_matrices_bit_for_bit(settings, units):
    compare_shapes(
        lambda m: torch.optim.Muon(m.parameters(), **settings),
        lambda m: lins.Muon(m, **settings),
        MATRICES,
        models.assert_equal,
        plans=models.nested((2, 2)) if units != "block" else PLANS,
        units=units,
    )


def test_muon_on_six_ranks_with_empty_shards():
    compare_shapes(
        lambda m: torch.optim.Muon(m.parameters(), lr=0.1),
        lambda m: lins.Muon(m, lr=0.1),
        [(2, 2), (1, 3)],
        models.assert_equal,
        plans=["zero3", "zero1", "P=3x1 G=3x1 OS=6"],
        ranks=(2, 3),
    )


class Both(torch.optim.Optimizer):
    """torch's Muon for the matrices but one, its AdamW for the rest."""

    def __init__(self, model):
        matrices = [p for p in model.parameters() if p.dim() == 2 and p is not model.root.weight]
        rest = [p for p in model.parameters() if p.dim() != 2 or p is model.root.weight]
        self.parts = [
            torch.optim.Muon(matrices, lr=0.1),
            torch.optim.AdamW(rest, lr=0.1, weight_decay=0.1, betas=(0.8, 0.9)),
        ]
        super().__init__(model.parameters(), {})

    def step(self):
        for part in self.parts:
            part.step()


def test_muon_gives_adamw_what_is_no_matrix_or_should_not_be_one():
    groups = [{"params": ["root.weight"], "muon": False}]
    compare_shapes(
        Both,
        lambda m: lins.Muon(m, lr=0.1, adamw_betas=(0.8, 0.9), param_groups=groups),
        [(3, 11), (4,), (2, 3, 5), (9, 4)],
        models.assert_equal,
    )


def test_muon_keeps_4_bytes_of_matrices_and_8_of_the_rest():
    def check(mesh):
        model = lins.lins_shard(Shapes([(6, 4), (12,)]), mesh, "zero1", units=lambda m: False)
        lins.Muon(model)
        return lins.memory(model)["optim"]

    elements = 15 + 24 + 12  # 13 on each of four ranks, with one of padding
    got = lins.testing.run((2, 2), AXES, check)
    assert sum(got) == 4 * (15 + 24) + 8 * 12
    assert elements == 51


def test_muon_sends_two_messages_in_bf16():
    def check(mesh):
        model = lins.lins_shard(Shapes([(8, 8), (8, 8), (8, 8)]), mesh, "zero3")
        opt = lins.Muon(model, lr=0.1)
        model.loss(0, mesh.rank).backward()
        with lins.trace() as t:
            opt.step()
        return [(r.op, r.recv_bytes) for r in t.records if r.op == "all_to_all"]

    for records in lins.testing.run((1, 4), AXES, check):
        assert len(records) == 2
        # At most all elements that come from elsewhere, at two bytes each, there and back.
        assert all(0 <= n <= 2 * (3 * 64 + 15) for _, n in records)


# --- 8-bit moments


class Big(Shapes):
    def __init__(self):
        super().__init__([(40, 30), (1000,)])

    def loss(self, step, rank):
        generator = torch.Generator().manual_seed(100 * step + rank)
        shapes = [m.shape for m in [self.root, *self.blocks]]
        return self([torch.randint(-99, 100, s, generator=generator).float() for s in shapes])


def trained_big(mesh, plan, make, steps=5):
    model = lins.lins_shard(Big(), mesh, plan)
    opt = make(model)
    for step in range(steps):
        model.loss(step, mesh.rank).backward()
        opt.step()
        opt.zero_grad()
    return model, opt


def test_8bit_adamw_follows_adamw_in_any_layout():
    def check(mesh):
        out = []
        for plan in ["ddp", "zero1", "zero3", "hsdp"]:
            model, _ = trained_big(mesh, plan, lambda m: lins.AdamW8bit(m, lr=0.01))
            out.append(models.parameters(model))
        exact, _ = trained_big(mesh, "ddp", lambda m: lins.AdamW(m, lr=0.01))
        return out, models.parameters(exact)

    start = models.clone(Big().named_parameters())
    for by_plan, want in lins.testing.run((2, 2), AXES, check):
        for got in by_plan:
            models.assert_equal(got, by_plan[0])
            for name, p in want.items():
                moved = (p - start[name]).norm()
                assert (got[name] - p).norm() < 0.05 * moved, name
                assert not torch.equal(got[name], p)


def test_8bit_moments_take_two_bytes_and_load_without_a_loss():
    def check(mesh):
        model, opt = trained_big(mesh, "zero1", lambda m: lins.AdamW8bit(m, lr=0.01))
        elements = [16, 1200, 1000]  # of each unit, padded
        codes = 2 * sum(elements) // 4
        assert lins.memory(model)["optim"] - codes <= 2 * 3 * 4
        full = opt.full_state_dict()
        other = lins.lins_shard(Big(), mesh, "zero3")
        again = lins.AdamW8bit(other, lr=0.01)
        again.load_state_dict(full)
        for i, entry in again.full_state_dict()["state"].items():
            for key, value in entry.items():
                assert torch.equal(value, full["state"][i][key]), key
        v = full["state"][0]["exp_avg_sq"]
        return v.dtype, bool((v > 0).all())

    assert lins.testing.run((2, 2), AXES, check) == [(torch.float32, True)] * 4
