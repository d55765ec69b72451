"""Clipping by the global norm."""

from __future__ import annotations

import math

import torch
from torch import nn

from lins.errors import LinsValueError
from lins.sharding import handle_of


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scales all gradients of a step so that their global norm is at most max_norm.

    Returns the norm before, as a float tensor: over all parameters, each element counted once
    however many ranks hold it. norm_type: 1, 2 or inf. Collective: one small reduction over all
    ranks, which step() uses again. The factor is applied while the optimizer updates, or when
    lins.states shows the gradients: clipping reads them once and writes nothing.
    """
    if not max_norm >= 0 or math.isnan(norm_type):
        raise LinsValueError(
            f"max_norm={max_norm}, norm_type={norm_type}: legal are max_norm >= 0 and 1, 2, inf"
        )
    return torch.tensor(handle_of(model).core.clip_grad_norm(float(max_norm), float(norm_type)))
