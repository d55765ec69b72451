"""Optimizers that see whole matrices, though shards cut them: Adafactor and Muon."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lins import _core
from lins.errors import LinsValueError
from lins.optimizers.base import ShardedOptimizer
from lins.optimizers.groups import NOT_NEGATIVE, POSITIVE, ParamGroups, number, options_of, pair


class Adafactor(ShardedOptimizer):
    """Adafactor over a wrapped model's optimizer-state shards (Shazeer and Stern, 2018).

    Args:
        model: wrapped by lins_shard.
        lr, beta2_decay, eps, d, weight_decay, maximize: as in torch.optim.Adafactor.
        param_groups, rounding, seed: as in lins.AdamW.

    Of a matrix one number per row and per column is kept, on every rank; of other parameters 4
    bytes per element, cut as OS is. Updates are torch.optim.Adafactor's, whatever the layout:
    before them, the ranks among which OS is cut add up the squares of rows and columns, and one
    number per parameter after that.
    """

    _rule = _core.Adafactor

    def __init__(
        self,
        model: nn.Module,
        lr: float | torch.Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        param_groups: ParamGroups = (),
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        defaults = dict(
            lr=lr,
            beta2_decay=beta2_decay,
            eps=eps,
            d=d,
            weight_decay=weight_decay,
            maximize=maximize,
        )
        super().__init__(model, defaults, param_groups, rounding, seed)

    def _options(self, group: dict[str, Any]) -> _core.AdafactorOptions:
        numbers = {
            "lr": NOT_NEGATIVE,
            "beta2_decay": ("<= 0", lambda x: x <= 0),
            "d": ("at least 1", lambda x: x >= 1),
            "weight_decay": NOT_NEGATIVE,
        }
        o = options_of(group, _core.AdafactorOptions(), numbers)
        eps1, eps2 = pair("eps", group["eps"])
        o.eps1 = 0.0 if eps1 is None else number("eps1", eps1, POSITIVE)
        o.eps2 = number("eps2", eps2, NOT_NEGATIVE)
        return o


class Muon(ShardedOptimizer):
    """Muon for matrices and AdamW for all else, over a wrapped model's optimizer-state shards.

    Args:
        model: wrapped by lins_shard.
        lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: as in
            torch.optim.Muon.
        muon: False, in a group: its matrices take AdamW too, as embeddings and heads should.
        adamw_betas, adamw_eps: of AdamW; its lr and weight_decay are the group's.
        maximize: ascend.
        param_groups, rounding, seed: as in lins.AdamW.

    Updates are torch.optim.Muon's on the whole matrices (Jordan et al., 2024), whatever the layout.
    The ranks among which OS is cut share the matrices out: a rank receives the momentum of those it
    owns, 2 bytes per element, makes them orthogonal and sends the parts back. 4 bytes of state per
    element of a matrix, 8 of the rest.
    """

    _rule = _core.Muon

    def __init__(
        self,
        model: nn.Module,
        lr: float | torch.Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        muon: bool = True,
        adamw_betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        maximize: bool = False,
        param_groups: ParamGroups = (),
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        defaults = dict(
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            ns_coefficients=ns_coefficients,
            eps=eps,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
            muon=muon,
            adamw_betas=adamw_betas,
            adamw_eps=adamw_eps,
            maximize=maximize,
        )
        super().__init__(model, defaults, param_groups, rounding, seed)

    def _options(self, group: dict[str, Any]) -> _core.MuonOptions:
        numbers = dict.fromkeys(
            ("lr", "weight_decay", "momentum", "eps", "adamw_eps"), NOT_NEGATIVE
        )
        flags = ("nesterov", "muon", "maximize")
        o = options_of(group, _core.MuonOptions(), numbers, flags, betas=["adamw_betas"])
        coefficients = tuple(float(x) for x in group["ns_coefficients"])
        if len(coefficients) != 3:
            raise LinsValueError(f"ns_coefficients={coefficients}: legal are three numbers")
        o.ns_coefficients = coefficients
        o.ns_steps = int(number("ns_steps", group["ns_steps"], ("1 to 99", lambda x: 1 <= x < 100)))
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            raise LinsValueError(
                f"adjust_lr_fn={group['adjust_lr_fn']!r}: legal are None, 'original' and "
                "'match_rms_adamw'"
            )
        o.match_rms_adamw = group["adjust_lr_fn"] == "match_rms_adamw"
        return o
