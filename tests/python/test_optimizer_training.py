"""The demonstration's model, trained by every rule."""

import copy

import lins
import torch
from lins.demo.data import Batches
from lins.demo.model import build
from lins.demo.settings import Settings
from lins.demo.train import loss_of
from models import AXES

S = Settings.short(steps=60, rows=4, micro_batches=1)
RULES = {
    "AdamW": lambda m: lins.AdamW(m, lr=2e-3),
    "AdamW8bit": lambda m: lins.AdamW8bit(m, lr=2e-3),
    "AdamW8bit, bf16, stochastic": lambda m: lins.AdamW8bit(m, lr=2e-3, rounding="stochastic"),
    "Lion": lambda m: lins.Lion(m, lr=5e-4),
    "Adafactor": lambda m: lins.Adafactor(m, lr=3e-2),
    "Muon": lambda m: lins.Muon(m, lr=5e-3, adjust_lr_fn="match_rms_adamw"),
}


def test_8bit_moments_lose_less_than_a_percent_and_every_rule_learns():
    with torch.random.fork_rng():
        start = build(S)
    batches = Batches(S, 2)

    def losses(mesh, name):
        dtype = torch.bfloat16 if "bf16" in name else None
        model = lins.lins_shard(copy.deepcopy(start), mesh, "zero1", param_dtype=dtype)
        opt = RULES[name](model)
        out = []
        for step in range(S.steps):
            loss = loss_of(model, *batches.of_rank(step, 0, mesh.rank))
            loss.backward()
            lins.clip_grad_norm_(model, 1.0)
            opt.step()
            opt.zero_grad()
            out.append(loss.item())
        return torch.tensor(out)

    by_rank = lins.testing.run((1, 2), AXES, lambda m: {name: losses(m, name) for name in RULES})
    mean = {name: (by_rank[0][name] + by_rank[1][name]) / 2 for name in RULES}
    last = {name: loss[-20:].mean().item() for name, loss in mean.items()}
    assert abs(last["AdamW8bit"] / last["AdamW"] - 1) < 0.01
    for name, loss in last.items():
        assert loss < 0.75 * mean[name][0].item(), (name, last)
