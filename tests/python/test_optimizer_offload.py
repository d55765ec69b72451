"""Optimizer states and masters in host memory: the same bits, other bytes."""

import lins
import models
import pytest
import torch
from models import AXES
from optimizers import PLANS, Term
from torch import nn

# Blocks of 256 elements: masters and two moments of fp32.
BLOCK = 256 * 12


class Wide(nn.Module):
    """Gradients are data; more than a block of elements on each of four ranks."""

    def __init__(self, seed=0):
        super().__init__()
        self.first = Term(30, 50)
        self.blocks = nn.ModuleList([Term(40, 33), Term(20, 70)])
        models.fill(self, False, seed)

    def forward(self, xs):
        return sum(m(x) for m, x in zip([self.first, *self.blocks], xs, strict=True))

    def loss(self, step, rank):
        generator = torch.Generator().manual_seed(100 * step + rank)
        shapes = [(30, 50), (40, 33), (20, 70)]
        dtype = next(self.parameters()).dtype
        return self([torch.randn(s, generator=generator).to(dtype) for s in shapes])


MAKERS = {
    "AdamW": lambda m, **o: lins.AdamW(m, lr=0.1, amsgrad=True, **o),
    "Adam": lambda m, **o: lins.Adam(m, lr=0.1, weight_decay=0.1, **o),
    "SGD": lambda m, **o: lins.SGD(m, lr=0.1, momentum=0.9, nesterov=True, **o),
    "Lion": lambda m, **o: lins.Lion(m, lr=0.1, **o),
    "AdamW8bit": lambda m, **o: lins.AdamW8bit(m, lr=0.1, **o),
    "Muon": lambda m, **o: lins.Muon(m, lr=0.1, **o),
}
GROUPS = [{"params": ["blocks.0.weight", "first.bias"], "lr": 0.3}, {"params": ["blocks.1.bias"]}]
BF16 = {"param_dtype": torch.bfloat16, "grad_dtype": torch.float32}


def wrapped(mesh, plan, make, chunk=None, options=BF16, **rule):
    """A model and its optimizer; chunk: bytes, None: on the device."""
    if chunk is not None:
        options = {**options, "offload_optimizer": True, "offload_chunk_bytes": chunk}
    model = lins.lins_shard(Wide(), mesh, plan, **options)
    return model, make(model, **rule)


def steps(model, opt, mesh, first=0, count=2, clip=True):
    for step in range(first, first + count):
        model.loss(step, mesh.rank).backward()
        if clip:
            lins.clip_grad_norm_(model, 1.0)
        opt.step()
        opt.zero_grad()


def everything(model, opt):
    """Parameters, masters and states, whole; step counts."""
    out = {}
    for name, s in lins.states(model).items():
        for key, value in s._asdict().items():
            if value is not None:
                out[f"{name}.{key}"] = value.full_tensor().clone()
    for i, entry in opt.full_state_dict()["state"].items():
        out |= {f"state {i} {key}": value for key, value in entry.items()}
    return out


def compare_all(check, plans=PLANS, shape=(2, 2)):
    """check(mesh, plan) -> (got, want)."""
    results = lins.testing.run(shape, AXES, lambda mesh: [check(mesh, plan) for plan in plans])
    for rank, by_plan in enumerate(results):
        for plan, (got, want) in zip(plans, by_plan, strict=True):
            models.assert_equal(got, want, f"{plan} rank {rank}")


@pytest.mark.parametrize("rule", MAKERS)
def test_the_same_bits_in_every_plan(rule):
    def check(mesh, plan):
        out = []
        for chunk in (BLOCK, None):
            model, opt = wrapped(
                mesh,
                plan,
                MAKERS[rule],
                chunk,
                param_groups=GROUPS,
                rounding="stochastic",
                seed=3,
            )
            steps(model, opt, mesh, count=3)
            out.append(everything(model, opt))
        return out

    compare_all(check)


@pytest.mark.parametrize("rule", ["AdamW", "SGD", "AdamW8bit", "Muon"])
@pytest.mark.parametrize("chunk", [1, 5 * BLOCK, 2**25])
def test_the_same_bits_without_masters_and_in_any_chunks(rule, chunk):
    def check(mesh, plan):
        out = []
        for c in (chunk, None):
            model, opt = wrapped(mesh, plan, MAKERS[rule], c, options={})
            steps(model, opt, mesh)
            out.append(everything(model, opt))
        return out

    compare_all(check, ["zero1", "zero3", "P=1 G=2x1 OS=4"])


@pytest.mark.parametrize("options", [{"overlap": False}, {"overlap_update": False}], ids=str)
def test_the_same_bits_without_overlap(options):
    def check(mesh, plan):
        out = []
        for c in (BLOCK, None):
            model, opt = wrapped(mesh, plan, MAKERS["AdamW"], c, options={**BF16, **options})
            steps(model, opt, mesh)
            out.append(everything(model, opt))
        return out

    compare_all(check, ["zero1", "zero3"])


def test_every_legal_plan():
    def check(mesh, plan):
        out = []
        for c in (BLOCK, None):
            model, opt = wrapped(mesh, plan, MAKERS["AdamW"], c)
            steps(model, opt, mesh, clip=False)
            out.append(everything(model, opt))
        return out

    compare_all(check, [*models.nested((2, 2)), "P=4 G=1 OS=4"])


def test_bytes_are_where_they_are_said_to_be():
    def check(mesh, plan):
        plain, plain_opt = wrapped(mesh, plan, MAKERS["Adam"])
        model, opt = wrapped(mesh, plan, MAKERS["Adam"], BLOCK)
        kept, held = lins.memory(plain), lins.memory(model)
        assert kept["optim_host"] == held["optim"] == 0
        assert held["optim_host"] == kept["optim"] > 0
        assert held["param"] == kept["param"]
        for m, o in ((model, opt), (plain, plain_opt)):
            steps(m, o, mesh, count=1)
            with lins.unsharded(m):
                pass  # waits for the updates
        # Three chunks of a block, and nothing that stays lent.
        assert lins.memory(model)["pooled"] - lins.memory(plain)["pooled"] == 3 * BLOCK
        assert lins.memory(model)["live_leases"] == 0
        shown = " ".join(str(lins.inspect(model)).split())
        assert f"optim in host memory {held['optim_host']:,}" in shown
        return {}, {}

    compare_all(check, ["ddp", "zero1", "zero3"])


@pytest.mark.parametrize("rule", ["AdamW", "AdamW8bit"])
def test_state_dicts_go_in_and_out(rule):
    def check(mesh, plan):
        want, want_opt = wrapped(mesh, plan, MAKERS[rule])
        steps(want, want_opt, mesh)
        inside, inside_opt = wrapped(mesh, plan, MAKERS[rule], BLOCK)
        outside, outside_opt = wrapped(mesh, plan, MAKERS[rule])
        whole, whole_opt = wrapped(mesh, plan, MAKERS[rule], BLOCK)
        # Into an offloaded one, from it back out, and whole.
        inside.load_state_dict(want.state_dict())
        inside_opt.load_state_dict(want_opt.state_dict())
        outside.load_state_dict(inside.state_dict())
        outside_opt.load_state_dict(inside_opt.state_dict())
        whole.load_state_dict(inside.state_dict())
        whole_opt.load_state_dict(inside_opt.full_state_dict())
        got = {}
        for name, (model, opt) in {
            "want": (want, want_opt),
            "inside": (inside, inside_opt),
            "outside": (outside, outside_opt),
            "whole": (whole, whole_opt),
        }.items():
            # Masters of parameters that were loaded in bf16 are those, rounded.
            for state in lins.states(model).values():
                state.master.to_local().copy_(state.master.to_local().bfloat16())
            steps(model, opt, mesh, first=2)
            got[name] = everything(model, opt)
        for name in ("inside", "outside", "whole"):
            models.assert_equal(got[name], got["want"], f"{plan} {name}")
        return {}, {}

    compare_all(check, ["zero1", "zero3"])


def test_masters_are_loaded_and_written_through():
    def check(mesh, plan):
        model, _ = wrapped(mesh, plan, MAKERS["AdamW"], BLOCK)
        values = models.clone(Wide(seed=5).named_parameters())
        model.load_state_dict(values)
        got = {n: s.master.full_tensor().clone() for n, s in lins.states(model).items()}
        models.assert_equal(got, values)
        with lins.unsharded(model, writeback=True):
            model.first.weight.detach().fill_(2.0)
        return {"master": lins.states(model)["first.weight"].master.full_tensor()}, {
            "master": torch.full((30, 50), 2.0)
        }

    compare_all(check, ["zero1", "zero3"])


def trained(mesh, plan, rule):
    """A model after some steps with offload, its optimizer, and all that both hold."""
    model, opt = wrapped(mesh, plan, MAKERS[rule], BLOCK)
    steps(model, opt, mesh)
    return model, opt, everything(model, opt)


def test_a_gradient_that_is_not_finite_skips_the_step():
    def check(mesh, plan):
        model, opt, before = trained(mesh, plan, "AdamW")
        (model.loss(3, mesh.rank) * (float("inf") if mesh.rank == 1 else 1.0)).backward()
        opt.step()
        assert opt.skipped_steps == 1
        opt.zero_grad()
        return everything(model, opt), before

    compare_all(check, ["zero1", "zero3"])


def test_an_option_that_is_not_legal_changes_nothing():
    def check(mesh, plan):
        model, opt, before = trained(mesh, plan, "Adam")
        model.loss(3, mesh.rank).backward()
        opt.param_groups[0]["lr"] = -1.0
        with pytest.raises(lins.LinsError, match="lr"):
            opt.step()
        opt.zero_grad()
        return everything(model, opt), before

    compare_all(check, ["zero1"])


def test_verification_sees_states_in_host_memory():
    def check(mesh):
        model, opt = wrapped(mesh, "P=1 G=1 OS=2x1", MAKERS["AdamW"], BLOCK)
        with lins.verify():
            steps(model, opt, mesh)
        if mesh.rank == 2:  # which holds what rank 0 holds
            for s in lins.states(model).values():
                s.exp_avg.to_local().add_(1)
        with pytest.raises(lins.LinsError, match="exp_avg after the update"), lins.verify():
            steps(model, opt, mesh, first=2)

    lins.testing.run((2, 2), AXES, check)


def test_adafactor_says_what_is_legal():
    def check(mesh):
        model = lins.lins_shard(Wide(), mesh, "zero1", offload_optimizer=True)
        with pytest.raises(lins.LinsError, match="legal with it are AdamW, Adam, AdamW8bit"):
            lins.Adafactor(model)

    lins.testing.run((1, 2), AXES, check)


def test_optimizers_of_torch_update_masters_in_host_memory():
    def check(mesh):
        out = []
        for chunk in (BLOCK, None):
            model, opt = wrapped(
                mesh, "zero1", lambda m: lins.wrap_optimizer(torch.optim.NAdam, m, lr=0.1), chunk
            )
            steps(model, opt, mesh)
            out.append(everything(model, opt))
        models.assert_equal(*out)
        own = lins.lins_shard(Wide(), mesh, "zero1", offload_optimizer=True)
        with pytest.raises(lins.LinsError, match="param_dtype of lower precision"):
            lins.wrap_optimizer(torch.optim.NAdam, own)

    lins.testing.run((1, 2), AXES, check)


def test_mistakes_are_errors_on_every_rank():
    def check(mesh):
        with pytest.raises(lins.LinsError, match="offload_chunk_bytes=0"):
            lins.lins_shard(Wide(), mesh, "zero1", offload_optimizer=True, offload_chunk_bytes=0)
        with pytest.raises(lins.LinsError, match="offload"):
            lins.lins_shard(Wide(), mesh, "zero1", offload_optimizer=mesh.rank == 0)

    lins.testing.run((1, 2), AXES, check)


# --- planned


def cluster(**options):
    return lins.Cluster(
        nodes=2,
        gpus_per_node=2,
        profile=lins.Profile.model(nodes=2, gpus_per_node=2),
        **options,
    )


def test_a_plan_with_offload_is_obeyed_and_holds_what_it_says():
    spec = lins.describe(Wide(), state_bytes={"param": 2, "grad": 4})
    settings = {"communicator_bytes": 0, "margin": 0, "offload_chunk_bytes": BLOCK}
    plans = [
        lins.Plan.uniform(spec, cluster(), policy=p, offload=True, **settings)
        for p in ("ddp", "zero1", "zero3")
    ]

    def check(mesh):
        for plan in plans:
            model, _ = wrapped(mesh, plan, MAKERS["Adam"])
            held = lins.memory(model)
            assert held["optim"] == plan.memory["optim"] == 0
            assert held["optim_host"] == plan.host_memory["optim"]
            assert held["param"] == plan.memory["param"]
            opt = MAKERS["Adam"](model)
            model.loss(0, mesh.rank).backward()
            lins.clip_grad_norm_(model, 1.0)
            pooled = lins.memory(model)["pooled"]
            opt.step()
            assert lins.memory(model)["pooled"] - pooled == plan.memory["staging"] == 3 * BLOCK
            # What is said when wrapping stands before the plan.
            own = lins.lins_shard(Wide(), mesh, plan, offload_optimizer=False, **BF16)
            assert lins.memory(own)["optim_host"] == 0

    lins.testing.run((2, 2), AXES, check)


@pytest.mark.parametrize(
    "policy",
    [
        lins.Policy(param=1, grad=1, optim=4, offload=True),
        lins.Policy(cap_bytes=2**40, offload=True),
    ],
    ids=str,
)
def test_a_policy_may_ask_for_it(policy):
    def check(mesh):
        model, opt = wrapped(mesh, policy, MAKERS["Adam"])
        steps(model, opt, mesh, count=1)
        return lins.memory(model)

    for held in lins.testing.run((2, 2), AXES, check):
        assert held["optim"] == 0 < held["optim_host"]
