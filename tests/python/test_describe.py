"""lins.describe: units, flops by formula, activations that autograd keeps, measured seconds."""

import doctest

import lins
import lins.description
import lins.profiling.units
import pytest
import torch
from lins.demo.model import Llama
from lins.demo.settings import Settings
from torch import nn
from torch.utils.checkpoint import checkpoint

B, D, H = 4, 8, 32


class Block(nn.Module):
    def __init__(self, hidden=H):
        super().__init__()
        self.up, self.down = nn.Linear(D, hidden), nn.Linear(hidden, D)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self, n=3, tied=False, hidden=(H,)):
        super().__init__()
        self.embedding = nn.Linear(D, D, bias=False)
        self.layers = nn.ModuleList(Block(hidden[i % len(hidden)]) for i in range(n))
        self.head = nn.Linear(D, D, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


BLOCK = D * H + H + H * D + D


def by_name(spec):
    return {u.name: u for u in spec.units}


def test_units_are_those_of_lins_shard():
    spec = lins.describe(Net(), torch.randn(B, D), seq_len=16, micro_batch=2)
    assert (spec.name, spec.seq_len, spec.micro_batch) == ("Net", 16, 2)
    root, layers = spec.units
    assert (root.name, root.parameters, root.repeat) == ("root", 2 * D * D, 1)
    assert (layers.name, layers.parameters, layers.repeat) == ("layers", BLOCK, 3)
    assert spec.parameters == sum(p.numel() for p in Net().parameters())


def test_flops_activations_and_boundaries_by_formula():
    spec = lins.describe(Net(), torch.randn(B, D))
    root, layers = spec.units
    assert root.forward_flops == 2 * (2 * B * D * D)
    assert layers.forward_flops == 2 * B * D * H * 2
    # A block keeps its input and the output of relu: the latter serves relu and the product. The
    # root keeps the sample (the embedding's gradient needs it) and the head's input.
    assert layers.activation_bytes == 4 * (B * D + B * H)
    assert root.activation_bytes == 4 * (B * D + B * D)
    assert layers.boundary_bytes == 4 * B * D
    assert spec.logits_bytes == B * D * (4 + 4)


def test_activations_are_what_autograd_really_keeps():
    model = Net()
    x = torch.randn(B, D)
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(x)
    own = {p.data_ptr() for p in model.parameters()}
    expected = sum(t.untyped_storage().nbytes() for k, t in kept.items() if k not in own)
    spec = lins.describe(model, x)
    assert sum(u.activation_bytes * u.repeat for u in spec.units) == expected


def test_tied_parameters_count_once_and_frozen_ones_are_known():
    model = Net(tied=True)
    for layer in model.layers:
        layer.up.requires_grad_(False)
    spec = lins.describe(model, torch.randn(B, D))
    root, layers = spec.units
    assert root.parameters == D * D
    assert layers.frozen == D * H + H and root.frozen == 0


def test_parameters_shared_by_units_are_the_roots():
    model = Net()
    model.layers[1].up.weight = model.layers[0].up.weight
    units = by_name(lins.describe(model))
    assert units["root"].parameters == 2 * D * D + D * H
    assert units["layers.0"].parameters == units["layers.1"].parameters == BLOCK - D * H
    assert units["layers.2"].parameters == BLOCK


def test_unlike_elements_are_units_of_their_own():
    spec = lins.describe(Net(4, hidden=(H, 2 * H)), torch.randn(B, D))
    assert [u.name for u in spec.units] == ["root", *(f"layers.{i}" for i in range(4))]
    assert [u.forward_flops for u in spec.units[1:3]] == [4 * B * D * H, 8 * B * D * H]


def test_units_by_another_rule():
    spec = lins.describe(Net(), torch.randn(B, D), units="linear")
    units = by_name(spec)
    assert len(units) == 9 and units["root"].parameters == 0
    assert units["layers.0.up"].forward_flops == 2 * B * D * H
    # A unit inside another: the outer one has what is left.
    spec = lins.describe(Net(1), torch.randn(B, D), units=lambda m: type(m) in (Block, nn.Linear))
    assert by_name(spec)["layers.0.up"].forward_flops == 2 * B * D * H
    total = sum(u.forward_flops for u in spec.units)
    assert total == 2 * (2 * B * D * D) + 4 * B * D * H


def test_meta_modules_cost_no_memory():
    with torch.device("meta"):
        model = Net(n=2, hidden=(1 << 20,))
        sample = torch.empty(B, D)
    for spec in (lins.describe(model), lins.describe(model, sample)):
        assert by_name(spec)["layers"].parameters == 2 * D * (1 << 20) + (1 << 20) + D
    assert by_name(spec)["layers"].activation_bytes == 4 * (B * D + B * (1 << 20))
    assert by_name(lins.describe(model))["layers"].forward_flops == 0


def test_a_llama_agrees_with_the_formula_for_llamas():
    s = Settings(dim=64, layers=3, heads=4, hidden=176, seq_len=32)
    with torch.device("meta"):
        model = Llama(s)
    real = lins.describe(model, torch.empty(2, 32, dtype=torch.long, device="meta"), 32, 2)
    formula = lins.ModelSpec.llama(
        "llama", hidden=64, layers=3, ffn=176, vocabulary=256, heads=4, seq_len=32, micro_batch=2
    )
    assert real.parameters == formula.parameters
    a, b = by_name(real)["layers"], by_name(formula)["layers"]
    assert (a.parameters, a.repeat) == (b.parameters, b.repeat)
    # The formula halves attention for its mask; the count of operations does not.
    attention = 2 * 32 * 64 * 64
    assert a.forward_flops == b.forward_flops + attention
    assert real.units[0].forward_flops == formula.units[2].forward_flops


def test_the_module_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Dropout(0.5))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    lins.describe(model, torch.randn(B, D, generator=torch.Generator().manual_seed(2)))
    lins.measure_units(model, torch.ones(B, D), repeats=1)
    assert torch.equal(torch.rand(3), expected)
    for k, v in model.state_dict().items():
        assert torch.equal(v, before[k]), k
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_samples_as_arguments():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(D, D)

        def forward(self, x, scale=1.0):
            return {"y": self.a(x) * scale}

    for sample in (torch.ones(B, D), (torch.ones(B, D), 2.0), {"x": torch.ones(B, D), "scale": 2}):
        assert lins.describe(Two(), sample).units[0].forward_flops == 2 * B * D * D


def test_checkpointed_blocks_keep_nothing_inside():
    class Checkpointed(Net):
        def forward(self, x):
            x = self.embedding(x)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return self.head(x)

    plain, saving = (lins.describe(m(), torch.randn(B, D)) for m in (Net, Checkpointed))
    assert by_name(saving)["layers"].activation_bytes < by_name(plain)["layers"].activation_bytes
    assert by_name(saving)["layers"].forward_flops == by_name(plain)["layers"].forward_flops


@pytest.mark.parametrize(
    "arguments, why",
    [
        ((Net(), torch.randn(B, D + 1)), "the forward of Net failed on the sample: RuntimeError"),
        ((7,), "int is no torch.nn.Module"),
        ((nn.ReLU(),), "has no parameters"),
    ],
)
def test_mistakes(arguments, why):
    with pytest.raises(lins.LinsError, match=why):
        lins.describe(*arguments)


def test_more_mistakes():
    with pytest.raises(lins.LinsError, match="measure=True needs a sample"):
        lins.describe(Net(), measure=True)
    with pytest.raises(lins.LinsError, match="nothing computes on the meta device"):
        lins.measure_units(Net().to("meta"), torch.ones(B, D))

    def wrapped(mesh):
        model = lins.lins_shard(Net(), mesh, "ddp")
        with pytest.raises(lins.LinsError, match="describe a module before lins_shard"):
            lins.describe(model)

    lins.testing.run((1, 2), ("node", "gpu"), wrapped)


def test_measured_seconds_follow_the_work():
    small, large = Net(2, hidden=(64,)), Net(2, hidden=(1 << 14,))
    x = torch.randn(64, D)
    times = [lins.measure_units(m, x)["layers"] for m in (small, large)]
    for t in times:
        assert t["forward"] > 0 and t["backward"] > 0
    assert times[1]["forward"] > 3 * times[0]["forward"]
    assert times[1]["backward"] > 3 * times[0]["backward"]
    spec = lins.describe(large, x, measure=True)
    layers = by_name(spec)["layers"]
    assert layers.forward_seconds > 0 and layers.backward_seconds > 0
    assert set(lins.measure_units(Net(2, hidden=(H, 2 * H)), torch.randn(B, D))) == {
        "root", "layers.0", "layers.1"
    }  # fmt: skip


def test_a_described_model_is_planned():
    with torch.device("meta"):
        model = Llama(Settings(dim=512, layers=8, heads=8, hidden=1376))
        tokens = torch.empty(1, 128, dtype=torch.long)
    spec = lins.describe(model, tokens, seq_len=128)
    cluster = lins.Cluster(nodes=2, gpus_per_node=8, profile="a800")
    plan = lins.solve(spec, cluster, micro_batches=2)
    assert plan.memory["total"] > 0 and plan.cost["total"] > 0


@pytest.mark.parametrize("module", [lins.description, lins.profiling.units])
def test_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0 and failed == 0
