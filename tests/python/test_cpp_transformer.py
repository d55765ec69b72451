"""examples/transformer.cc and the same model in Python: one library, so the same losses.

Both sides work out the initial values and the tokens by the same formulas.
"""

import os
import subprocess
from pathlib import Path

import lins
import pytest
import torch
from models import AXES
from torch import nn
from torch.nn import functional

BUILD = Path(os.environ.get("LINS_BUILD", Path(__file__).parents[2] / "build"))
PROGRAM = BUILD / "examples" / "transformer"
STEPS, MICRO_BATCHES, ROWS, LENGTH = 20, 2, 2, 12
VOCABULARY, WIDTH, HEADS, LAYERS = 17, 16, 2, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x):
        rows, length, _ = x.shape
        heads = self.qkv(x).view(rows, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = torch.matmul(q, k.transpose(-2, -1)) * (1 / (WIDTH / HEADS) ** 0.5)
        weights = scores.masked_fill(future, -float("inf")).softmax(-1)
        return self.proj(torch.matmul(weights, v).transpose(1, 2).reshape(rows, length, WIDTH))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                j = torch.arange(p.numel(), dtype=torch.double)
                p.copy_((j * j * 1.3 + 0.7 * i).sin().mul(0.3).view(p.shape))

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens_of(step, m):
    row = torch.arange(ROWS).unsqueeze(1) + ROWS * (m + step)
    return (row * 3 + torch.arange(LENGTH + 1) * (row % 2 + 1)) % VOCABULARY


def train(mesh, policy):
    """Mean loss of each step on one rank."""
    model = lins.lins_shard(Transformer(), mesh, policy)
    opt = lins.AdamW(model, lr=1e-2)
    losses = []
    for step in range(STEPS):
        total = 0.0
        for m in range(MICRO_BATCHES):
            tokens = tokens_of(step, mesh.rank * MICRO_BATCHES + m)
            with lins.micro_batch(model, index=m, count=MICRO_BATCHES):
                logits = model(tokens[:, :LENGTH]).reshape(-1, VOCABULARY)
                loss = functional.cross_entropy(logits, tokens[:, 1:].reshape(-1))
                loss.backward()
            total += loss.item()
        losses.append(total / MICRO_BATCHES)
        lins.clip_grad_norm_(model, 1.0)
        opt.step()
        opt.zero_grad()
    with lins.unsharded(model):
        pass  # the last update has arrived
    return losses


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: make build")
@pytest.mark.parametrize("policy", ["P=2 G=2 OS=4", "zero1", "zero3"])
def test_a_program_in_cpp_has_the_losses_of_python(policy):
    done = subprocess.run(
        [PROGRAM, policy],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr  # libtorch alone agrees
    rows = [line.split() for line in done.stdout.splitlines()[1:-1]]
    assert [int(r[0]) for r in rows] == list(range(STEPS))
    by_rank = lins.testing.run((2, 2), AXES, lambda mesh: train(mesh, policy))
    python = [sum(losses) / len(by_rank) for losses in zip(*by_rank, strict=True)]
    assert python[-1] < 0.8 * python[0]
    # The same kernels on the same numbers in the same order, so every printed digit is the same.
    assert [r[1] for r in rows] == [f"{x:.12f}" for x in python]
