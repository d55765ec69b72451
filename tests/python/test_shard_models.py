"""Modules of Hugging Face transformers, unchanged, train like a single process."""

import copy
import os
import shutil

import lins
import models
import pytest
import torch
from models import AXES
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"  # models are made from their configurations
transformers = pytest.importorskip("transformers")

PLANS = ["ddp", "zero3", "P=2 G=2 OS=4"]
# Sums over ranks round in another order than those of one process. A gradient that is nothing but
# rounding (of a key's bias) must not become a step of full size.
ADAM = models.ADAM | {"eps": 1e-3}
RANKS, STEPS, MICRO_BATCHES, VOCABULARY = 4, 2, 2, 64
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "hidden_size": 32}
HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def llama():
    config = transformers.LlamaConfig(**SIZES, **HEADS, intermediate_size=40)
    return transformers.LlamaForCausalLM(config)


def gpt2():
    """The embedding is the head, too."""
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        **dropouts,
    )
    return transformers.GPT2LMHeadModel(config)


def mixtral():
    config = transformers.MixtralConfig(
        **SIZES, **HEADS, intermediate_size=24, num_local_experts=8, num_experts_per_tok=2
    )
    return transformers.MixtralForCausalLM(config)


MAKERS = {f.__name__: f for f in (llama, gpt2, mixtral)}


@pytest.fixture(scope="module")
def make():
    """A fresh copy of a model by name, of the values that all its copies begin with."""
    made = {}
    for name, maker in MAKERS.items():
        torch.manual_seed(0)
        made[name] = maker().train()
    return lambda name: copy.deepcopy(made[name])


def tokens(step, micro, rank, length=6):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randint(VOCABULARY, (1, length), generator=generator)


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids).loss


def train(model, mesh, policy, **options):
    """On one rank: the losses of all steps, and the parameters in the end, whole."""
    lins.lins_shard(model, mesh, policy, **options)
    opt = lins.AdamW(model, **ADAM)
    losses = []
    for step in range(STEPS):
        for m in range(MICRO_BATCHES):
            with lins.micro_batch(model, index=m, count=MICRO_BATCHES):
                loss = loss_of(model, tokens(step, m, mesh.rank))
                loss.backward()
            losses.append(loss.item())
        opt.step()
        opt.zero_grad()
    return losses, models.parameters(model)


def train_alone(model):
    """One process on the batches of all ranks: losses by rank, and parameters."""
    opt = torch.optim.AdamW(model.parameters(), **ADAM)
    losses = [[] for _ in range(RANKS)]
    for step in range(STEPS):
        for m in range(MICRO_BATCHES):
            for rank in range(RANKS):
                loss = loss_of(model, tokens(step, m, rank))
                (loss / (RANKS * MICRO_BATCHES)).backward()
                losses[rank].append(loss.item())
        opt.step()
        opt.zero_grad()
    return losses, models.clone(model.named_parameters())


@pytest.fixture(scope="module")
def alone(make):
    known = {}

    def get(name):
        if name not in known:
            known[name] = train_alone(make(name))
        return known[name]

    return get


def compare(results, want, what):
    want_losses, want_parameters = want
    for rank, (losses, parameters) in enumerate(results):
        torch.testing.assert_close(losses, want_losses[rank], rtol=1e-5, atol=0)
        models.assert_close(parameters, want_parameters, f"{what} rank {rank}", tolerance=1e-5)
        models.assert_equal(parameters, results[0][1], f"{what} rank {rank} and 0")


@pytest.mark.parametrize("policy", PLANS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_model_trains_like_a_single_process(name, policy, make, alone):
    want = alone(name)
    results = lins.testing.run((2, 2), AXES, lambda mesh: train(make(name), mesh, policy))
    compare(results, want, f"{name} {policy}")


@pytest.mark.parametrize("name", MAKERS)
def test_linears_as_units(name, make, alone):
    want = alone(name)

    def check(mesh):
        return train(make(name), mesh, "zero3", units="linear", prefetch=2)

    compare(lins.testing.run((2, 2), AXES, check), want, name)


@pytest.mark.parametrize("name", MAKERS)
def test_units_that_are_placed_unlike_each_other(name, make, alone):
    want = alone(name)
    spec = lins.describe(make(name), state_bytes={"param": 4, "grad": 4, "master": 0, "moments": 8})
    cluster = lins.Cluster(
        nodes=2, gpus_per_node=2, profile=lins.Profile.model(nodes=2, gpus_per_node=2)
    )
    settings = {"objective": "comm", "micro_batches": MICRO_BATCHES, "communicator_bytes": 0}
    # Of models this small, what is alive at once would outweigh all states.
    settings |= {"gathered_units": 1, "gradient_buckets": 1}
    most, least = (
        lins.Plan.uniform(spec, cluster, policy=p, **settings).memory["total"]
        for p in ("ddp", "zero3")
    )
    plans = (
        lins.solve(spec, cluster, uniform=False, cap_bytes=cap, **settings)
        for cap in range(least, most, (most - least) // 20)
    )
    plan = next(p for p in plans if len(set(p.policies.values())) > 1)
    results = lins.testing.run((2, 2), AXES, lambda mesh: train(make(name), mesh, plan))
    compare(results, want, f"{name} {plan.policies}")


def test_some_experts_get_no_token_on_some_ranks(make):
    model = make("mixtral")
    chosen = set()
    for rank in range(RANKS):
        logits = model(tokens(0, 0, rank, length=2), output_router_logits=True).router_logits[0]
        chosen.add(frozenset(logits.topk(2).indices.flatten().tolist()))
    assert len(chosen) > 1 and all(len(x) < 8 for x in chosen)

    def step(model, mesh, policy):
        lins.lins_shard(model, mesh, policy)
        loss_of(model, tokens(0, 0, mesh.rank, length=2)).backward()
        return models.gradients(model)

    for rank in range(RANKS):
        (loss_of(model, tokens(0, 0, rank, length=2)) / RANKS).backward()
    want = {n: p.grad for n, p in model.named_parameters()}
    for policy in PLANS:
        for rank, got in enumerate(
            lins.testing.run((2, 2), AXES, lambda mesh, p=policy: step(make("mixtral"), mesh, p))
        ):
            models.assert_close(got, want, f"{policy} rank {rank}", tolerance=1e-5)


class Experts(nn.Module):
    """Experts as modules of their own, called only where tokens are sent to them."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, 6)
        self.gate = nn.Linear(6, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 2)
        models.fill(self, whole=False)

    def forward(self, x):
        x = self.inp(x)
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i in chosen.unique().tolist():
            rows = chosen == i
            out[rows] = weights[rows, None] * self.experts[i](x[rows])
        return self.head(x + out)


def test_expert_modules_that_some_ranks_or_all_leave_out():
    def batch(rank):
        return models.batch(6, 0, rank, rows=1)

    def used(model, x):
        return model.gate(model.inp(x)).argmax(-1).tolist()

    reference = Experts()
    users = [used(reference, batch(r)[0]) for r in range(RANKS)]
    everyone = {e for u in users for e in u}
    assert 1 < len(everyone) < 4, users  # some on some ranks, one on none
    for rank in range(RANKS):
        (models.loss_of(reference, *batch(rank)) / RANKS).backward()
    want = {n: p.grad for n, p in reference.named_parameters()}

    def check(mesh, policy, units):
        model = lins.lins_shard(Experts(), mesh, policy, units=units)
        models.loss_of(model, *batch(mesh.rank)).backward()
        return models.gradients(model)

    # As units of their own, experts that some ranks leave out must not need a gather.
    cases = [(p, lambda m: False) for p in PLANS] + [("ddp", "block"), ("zero2", "block")]
    for policy, units in cases:
        for got in lins.testing.run((2, 2), AXES, lambda m, p=policy, u=units: check(m, p, u)):
            for name, grad in want.items():
                if grad is None:  # on no rank
                    assert got[name] is None or not got[name].any(), name
                else:
                    models.assert_close({name: got[name]}, {name: grad}, f"{policy} {name}")


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_gradient_checkpointing(name, reentrant, make, alone):
    want = alone(name)

    def check(mesh):
        model = make(name)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return [train(copy.deepcopy(model), mesh, p) for p in PLANS]

    results = lins.testing.run((2, 2), AXES, check)
    for i, policy in enumerate(PLANS):
        compare([r[i] for r in results], want, f"{name} {policy}")


@pytest.mark.parametrize("name", MAKERS)
def test_generation(name, make):
    ids = tokens(9, 0, 0)
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    want = make(name).eval().generate(ids, **settings)

    def check(mesh):
        out = []
        for policy in PLANS:
            model = lins.lins_shard(make(name).eval(), mesh, policy)
            opt = lins.AdamW(model, lr=0.0, weight_decay=0.0)
            out.append(model.generate(ids, **settings))
            loss_of(model, ids).backward()  # a step in between leaves nothing behind
            opt.step()
            out.append(model.generate(ids, **settings))
        return out

    for results in lins.testing.run((2, 2), AXES, check):
        for got in results:
            assert torch.equal(got, want)


def test_methods_other_than_forward(make):
    """What lies below the root's forward needs the root's own parameters."""
    ids = tokens(9, 0, 0)
    want = make("llama").model(ids).last_hidden_state

    def check(mesh):
        model = lins.lins_shard(make("llama"), mesh, "ddp")
        assert torch.equal(model.model(ids).last_hidden_state, want)
        model = lins.lins_shard(make("llama"), mesh, "zero3")
        with pytest.raises(RuntimeError, match=r"not gathered now.*lins\.unsharded"):
            model.model(ids)
        with lins.unsharded(model), torch.no_grad():
            assert torch.equal(model.model(ids).last_hidden_state, want)
        return loss_of(model, ids).item()  # the error has left nothing behind

    reference = loss_of(make("llama"), ids).item()
    for loss in lins.testing.run((2, 2), AXES, check):
        assert loss == pytest.approx(reference, rel=1e-6)


@pytest.mark.parametrize(
    ("backend", "policies"), [("aot_eager", ["zero1", "zero3"]), ("inductor", ["P=2 G=2 OS=4"])]
)
def test_blocks_compiled_inside_their_units(backend, policies, make, alone):
    if backend == "inductor" and not any(shutil.which(c) for c in ("g++", "clang++", "c++")):
        pytest.skip("on a CPU inductor needs a C++ compiler: none of g++, clang++, c++ is here")
    want = alone("llama")
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()

    def check(mesh):
        # Updates and gathers are late: none may be taken for granted, nor for part of the program.
        with lins.testing.delay(op="all_gather", seconds=0.02):
            return check_late(mesh)

    def check_late(mesh):
        out = []
        for policy in policies:
            model = make("llama")
            model.config.use_cache = False
            for layer in model.model.layers:
                layer.forward = torch.compile(layer.forward, backend=backend, fullgraph=True)
            out.append(train(model, mesh, policy))
        return out

    # All of these are one function to the compiler.
    instances = RANKS * HEADS["num_hidden_layers"] * len(policies)
    with torch._dynamo.config.patch(recompile_limit=2 * instances):
        results = lins.testing.run((2, 2), AXES, check, timeout=180)
    for i, policy in enumerate(policies):
        compare([r[i] for r in results], want, f"{backend} {policy}")
    # Gathering and freeing between two calls makes nothing compile again.
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] <= instances
