"""Optimizers over the shards of a wrapped model, clipping, and loss scaling."""

from lins.optimizers.adam import Adam, AdamW, AdamW8bit
from lins.optimizers.base import ShardedOptimizer
from lins.optimizers.clipping import clip_grad_norm_
from lins.optimizers.matrices import Adafactor, Muon
from lins.optimizers.scaler import GradScaler
from lins.optimizers.sgd import SGD, Lion
from lins.optimizers.wrapped import WrappedOptimizer, wrap_optimizer

__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "AdamW8bit",
    "GradScaler",
    "Lion",
    "Muon",
    "ShardedOptimizer",
    "WrappedOptimizer",
    "clip_grad_norm_",
    "wrap_optimizer",
]
