"""A Llama in plain torch: RMSNorm, rotary positions, causal attention, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of a micro-batch of one rank. The default has 8.4 M parameters."""

    dim: int = 256
    layers: int = 9
    heads: int = 4
    hidden: int = 688
    vocabulary: int = 2048
    seq_len: int = 192
    rows: int = 1


class Block(nn.Module):
    """Attention and SwiGLU, each normalised before and added to what came in."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.heads = s.heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(s.dim), nn.RMSNorm(s.dim)
        self.query, self.key, self.value, self.out = (
            nn.Linear(s.dim, s.dim, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(s.dim, s.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(s.hidden, s.dim, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x: (rows, length, dim); cos, sin: (length, dim / heads / 2)."""

        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        def rotate(t: torch.Tensor) -> torch.Tensor:
            a, b = t.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

        y = self.attention_norm(x)
        q, k, v = rotate(heads(self.query(y))), rotate(heads(self.key(y))), heads(self.value(y))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """(rows, length + 1) tokens -> mean cross-entropy of each token but the first."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.dim)
        self.layers = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.dim)
        self.head = nn.Linear(s.dim, s.vocabulary, bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, s.dim // s.heads, 2) / (s.dim // s.heads))
        angles = torch.outer(torch.arange(s.seq_len), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar."""
        x = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def build(s: Shape, seed: int = 0) -> Llama:
    """The model with the values that the seed gives, the same in every process."""
    model = Llama(s)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(0.0, 0.02, generator=generator)
    return model


def tokens(s: Shape, step: int, micro_batch: int, rank: int) -> torch.Tensor:
    """(rows, seq_len + 1): the batch of one rank, of tokens that are not all alike often."""
    generator = torch.Generator().manual_seed((step * 1009 + micro_batch) * 1009 + rank)
    uniform = torch.rand(s.rows, s.seq_len + 1, generator=generator)
    return (uniform.pow(3) * s.vocabulary).long()
