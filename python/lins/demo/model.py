"""A small Llama over bytes: RMSNorm, rotary positions, causal attention, SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from lins.demo.settings import Settings

VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention with rotary positions. (rows, length, dim) -> the same."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """rotation: from rotations()."""

        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k = (rotate(heads(f(x)), rotation) for f in (self.query, self.key))
        y = F.scaled_dot_product_attention(q, k, heads(self.value(x)), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and SwiGLU, each normalised before and added to what came in."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = Attention(dim, heads)
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """(rows, length, dim) -> the same."""
        x = x + self.attention(self.attention_norm(x), rotation)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """(rows, length) bytes -> (rows, length, 256) logits of the byte that follows each."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, s.dim)
        self.layers = nn.ModuleList(Block(s.dim, s.heads, s.hidden) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.dim)
        self.head = nn.Linear(s.dim, VOCABULARY, bias=False)
        if s.tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("rotation", rotations(s.seq_len, s.dim // s.heads), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: int64 below 256; at most seq_len of them in a row."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.rotation)
        return self.head(self.norm(x))


def rotations(length: int, head_dim: int) -> torch.Tensor:
    """(2, length, head_dim / 2): cosines and sines of each position's angles."""
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turns the pairs (x[i], x[i + head_dim / 2]) by their position's angles."""
    cos, sin = rotation[:, : x.shape[-2]]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def build(s: Settings) -> Llama:
    """The model with the values that the seed gives, the same in every process."""
    model = Llama(s)
    generator = torch.Generator().manual_seed(s.seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() < 2:
                continue  # norms begin as ones
            writes_residual = name.endswith(("out.weight", "down.weight"))
            std = 0.02 / (2 * s.layers) ** 0.5 if writes_residual else 0.02
            p.normal_(0.0, std, generator=generator)
    return model
