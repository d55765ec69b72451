"""SGD and Lion."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lins import _core
from lins.errors import LinsValueError
from lins.optimizers.base import ShardedOptimizer
from lins.optimizers.groups import NOT_NEGATIVE, ParamGroups, options_of


class SGD(ShardedOptimizer):
    """SGD with momentum over a wrapped model's optimizer-state shards.

    Args:
        model: wrapped by lins_shard.
        lr, momentum, dampening, weight_decay, nesterov, maximize: as in torch.optim.SGD.
        param_groups, rounding, seed: as in lins.AdamW.

    Updates equal torch.optim.SGD's. 4 bytes per parameter with momentum, none without.
    """

    _rule = _core.SGD

    def __init__(
        self,
        model: nn.Module,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        param_groups: ParamGroups = (),
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        defaults = dict(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )
        super().__init__(model, defaults, param_groups, rounding, seed)

    def _options(self, group: dict[str, Any]) -> _core.SGDOptions:
        numbers = {
            "lr": NOT_NEGATIVE,
            "momentum": NOT_NEGATIVE,
            "dampening": None,
            "weight_decay": NOT_NEGATIVE,
        }
        o = options_of(group, _core.SGDOptions(), numbers, ("nesterov", "maximize"))
        if o.nesterov and (o.momentum <= 0 or o.dampening != 0):
            raise LinsValueError(
                f"nesterov with momentum={o.momentum}, dampening={o.dampening}: legal are a "
                "momentum above 0 and no dampening"
            )
        return o


class Lion(ShardedOptimizer):
    """Lion over a wrapped model's optimizer-state shards (Chen et al., 2023).

    Args:
        model: wrapped by lins_shard.
        lr, betas, weight_decay: p *= 1 - lr*weight_decay, then
            p -= lr * sign(beta1*m + (1-beta1)*g), then m = beta2*m + (1-beta2)*g.
        maximize: ascend.
        param_groups, rounding, seed: as in lins.AdamW.

    4 bytes per parameter of fp32 state.
    """

    _rule = _core.Lion

    def __init__(
        self,
        model: nn.Module,
        lr: float | torch.Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        param_groups: ParamGroups = (),
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        defaults = dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)
        super().__init__(model, defaults, param_groups, rounding, seed)

    def _options(self, group: dict[str, Any]) -> _core.LionOptions:
        numbers = {"lr": NOT_NEGATIVE, "weight_decay": NOT_NEGATIVE}
        return options_of(group, _core.LionOptions(), numbers, betas=["betas"])
