"""AdamW, Adam, and AdamW with 8-bit moments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lins import _core
from lins.errors import LinsValueError
from lins.optimizers.base import ShardedOptimizer
from lins.optimizers.groups import NOT_NEGATIVE, ParamGroups, options_of


class AdamW(ShardedOptimizer):
    """AdamW with decoupled weight decay over a wrapped model's optimizer-state shards.

    Args:
        model: wrapped by lins_shard.
        lr, betas, eps, weight_decay, amsgrad, maximize: as in torch.optim.AdamW.
        fused: square roots by the processor's instruction. Where torch takes another library's, a
            third faster, and other in the last bit. Without it, updates are torch's bit for bit.
        param_groups: dicts with "params" (names, parameters or modules) and options of their own;
            parameters in no group form one more, with the defaults.
        rounding: of fp32 masters to parameters of lower precision: "nearest" or "stochastic".
        seed: of stochastic rounding.

    Updates equal torch.optim.AdamW's (not fused) on the whole parameters bit for bit, in any layout
    (Loshchilov and Hutter, 2019). 8 bytes per parameter of fp32 states, 12 with amsgrad.

    Example:
        >>> import lins, torch
        >>> def train(mesh):
        ...     model = lins.lins_shard(torch.nn.Linear(4, 1, bias=False), mesh, "zero3")
        ...     opt = lins.AdamW(model, lr=0.1)
        ...     model(torch.ones(2, 4)).sum().backward()
        ...     opt.step()
        ...     return tuple(lins.states(model)["weight"].exp_avg.full_tensor()[0].shape)
        >>> lins.testing.run((1, 2), ("node", "gpu"), train)
        [(4,), (4,)]
    """

    _rule = _core.AdamW

    def __init__(
        self,
        model: nn.Module,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        fused: bool = False,
        param_groups: ParamGroups = (),
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        defaults = dict(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            fused=fused,
        )
        super().__init__(model, defaults, param_groups, rounding, seed)

    def _options(self, group: dict[str, Any]) -> _core.AdamOptions:
        numbers = {"lr": NOT_NEGATIVE, "eps": NOT_NEGATIVE, "weight_decay": NOT_NEGATIVE}
        flags = ("amsgrad", "maximize", "fused")
        return options_of(group, _core.AdamOptions(), numbers, flags, betas=["betas"])


class Adam(AdamW):
    """Adam, with L2 weight decay, over a wrapped model's optimizer-state shards.

    As lins.AdamW in all else; updates equal torch.optim.Adam's (Kingma and Ba, 2015).
    """

    _rule = _core.Adam

    def __init__(
        self,
        model: nn.Module,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        fused: bool = False,
        param_groups: ParamGroups = (),
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        super().__init__(
            model,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            fused=fused,
            param_groups=param_groups,
            rounding=rounding,
            seed=seed,
        )


class AdamW8bit(AdamW):
    """AdamW whose moments take 8 bits each: 2.02 bytes per parameter in place of 8.

    Arguments as lins.AdamW's, without amsgrad. Moments are small floating-point numbers with one
    power of two per block of 256 (block-wise states: Dettmers et al., 2022; the number format: OCP
    Microscaling), rounded stochastically, by `seed`. A block never straddles two ranks' shards.
    state_dict() holds them as fp32 values, which load again without a loss.
    """

    _rule = _core.AdamW8bit

    def __init__(
        self,
        model: nn.Module,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        param_groups: ParamGroups = (),
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        super().__init__(
            model,
            lr,
            betas,
            eps,
            weight_decay,
            maximize=maximize,
            param_groups=param_groups,
            rounding=rounding,
            seed=seed,
        )

    def _options(self, group: dict[str, Any]) -> _core.AdamOptions:
        o = super()._options(group)
        if o.amsgrad:
            raise LinsValueError("amsgrad=True: 8-bit AdamW has none, legal is False")
        return o
