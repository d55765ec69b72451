"""Small models and the arithmetic of one process, shared by the tests of sharding.

With whole=True all weights and inputs are small whole numbers, so that every sum is exact in fp32
whatever
its order. SIGN_DESCENT keeps them whole: without memory, Adam moves each weight by lr in the
direction of its
gradient.
"""

import itertools

import lins
import torch
from torch import nn
from torch.nn import functional

SIGN_DESCENT = {"lr": 1.0, "betas": (0.0, 0.0), "eps": 1e-30, "weight_decay": 0.0}
ADAM = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
MESHES = [(1, 4), (2, 2), (4, 1)]
AXES = ("node", "gpu")


class Block(nn.Module):
    def __init__(self, d, whole):
        super().__init__()
        self.up = nn.Linear(d, d)
        self.down = nn.Linear(d, d, bias=False)
        self.activation = nn.Identity() if whole else nn.Tanh()

    def forward(self, x):
        return x + self.down(self.activation(self.up(x)))


class Stack(nn.Module):
    """Root parameters before and after a list of blocks; sizes that divide by nothing."""

    def __init__(self, depth=2, d=5, whole=False, seed=0):
        super().__init__()
        self.inp = nn.Linear(3, d)
        self.blocks = nn.ModuleList(Block(d, whole) for _ in range(depth))
        self.head = nn.Linear(d, 2)
        fill(self, whole, seed)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def fill(model, whole, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if whole:
                p.copy_(torch.randint(-1, 2, p.shape, generator=generator))
            else:
                p.copy_(
                    torch.randn(p.shape, generator=generator) / max(1, p.shape[-1:].numel()) ** 0.5
                )
    return model


def batch(step, micro, rank, whole=False, rows=2, width=3):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank + 1)
    if whole:
        x, y = (torch.randint(-2, 3, (rows, n), generator=generator) for n in (width, 2))
        return x.float(), y.float()
    return torch.randn(rows, width, generator=generator), torch.randn(rows, 2, generator=generator)


def loss_of(model, x, y, whole=False):
    out = model(x)
    return (out * y).sum() if whole else functional.mse_loss(out, y)


def clone(tensors):
    return {name: t.detach().clone() for name, t in tensors}


def parameters(model):
    """Every parameter, whole. Collective."""
    return {name: s.param.full_tensor().clone() for name, s in lins.states(model).items()}


def gradients(model):
    """Every gradient, whole, None where there is none. Collective."""
    return {
        name: None if s.grad is None else s.grad.full_tensor().clone()
        for name, s in lins.states(model).items()
    }


def backward(model, step, rank, micro_batches=1, whole=False):
    """All micro-batches of one step on one rank."""
    for m in range(micro_batches):
        with lins.micro_batch(model, index=m, count=micro_batches):
            loss_of(model, *batch(step, m, rank, whole), whole).backward()


def shard(model, mesh, plan, **options):
    """lins_shard, where "zero1 paper" is zero1 in family paper."""
    if isinstance(plan, str) and plan.endswith(" paper"):
        plan, options = plan.removesuffix(" paper"), {"family": "paper", **options}
    return lins.lins_shard(model, mesh, plan, **options)


def train(
    mesh, policy, steps=3, micro_batches=1, whole=False, settings=ADAM, model=None, **options
):
    """Trains on one rank of `mesh`. Returns (gradients of each step, parameters), whole."""
    model = Stack(whole=whole) if model is None else model
    shard(model, mesh, policy, **options)
    opt = lins.AdamW(model, **settings)
    grads = []
    for step in range(steps):
        backward(model, step, mesh.rank, micro_batches, whole)
        grads.append(gradients(model))
        opt.step()
        opt.zero_grad()
    return grads, parameters(model)


def train_alone(
    ranks, steps=3, micro_batches=1, whole=False, settings=ADAM, model=None, dtype=torch.float32
):
    """The same by one process without lins: sums of all gradients, divided once."""
    model = (Stack(whole=whole) if model is None else model).to(dtype)
    opt = torch.optim.AdamW(model.parameters(), **settings)
    grads = []
    for step in range(steps):
        for m, rank in itertools.product(range(micro_batches), range(ranks)):
            x, y = batch(step, m, rank, whole)
            loss_of(model, x.to(dtype), y.to(dtype), whole).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(ranks * micro_batches)
        grads.append(
            {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        )
        opt.step()
        opt.zero_grad()
    return grads, clone(model.named_parameters())


def assert_equal(actual, expected, what=""):
    """Bit for bit, by name."""
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        got = actual[name]
        if want is None or got is None:
            assert got is want, f"{what} {name}: {got} != {want}"
        else:
            assert got.dtype == want.dtype, f"{what} {name}: {got.dtype} != {want.dtype}"
            assert torch.equal(got, want), f"{what} {name}:\n{got}\n{want}"


def assert_close(actual, expected, what="", tolerance=1e-6):
    """Relative to the scale of each tensor, by name."""
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        error = (
            (actual[name].double() - want.double()).abs().max() if want.numel() else torch.zeros(())
        )
        scale = want.double().abs().max() if want.numel() else torch.ones(())
        assert error <= tolerance * scale, f"{what} {name}: off by {error} of {scale}"


def text(plan):
    """The policy string of an entry of lins.legal_plans."""
    p, g, o = ("x".join(map(str, f)) for f in plan)
    return f"P={p} G={g} OS={o}"


def nested(shape):
    """All nested plans of a (nodes, gpus) mesh as policy strings."""
    return [text(plan) for plan in lins.legal_plans(shape[1], shape[0])]
