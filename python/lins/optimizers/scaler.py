"""Loss scaling for fp16."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from lins.errors import LinsRuntimeError
from lins.optimizers.base import ShardedOptimizer


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for optimizers of lins: the same interface, agreed over ranks.

    Args:
        device: of the model, "cpu" or "cuda".
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in
            torch.amp.GradScaler, whose defaults they have.

    unscale_ multiplies the gradients while the optimizer updates, without a pass of its own.
    unscale_ and step are collective: a gradient that is not finite on any rank skips the step on
    all, which the optimizer counts, and update() lowers the scale on all. Other optimizers are
    treated as torch.amp.GradScaler does.

    Example:
        >>> import lins, torch
        >>> def train(mesh):
        ...     model = lins.lins_shard(
        ...         torch.nn.Linear(2, 1), mesh, "zero1", param_dtype=torch.float16
        ...     )
        ...     opt, scaler = lins.SGD(model, lr=0.1), lins.GradScaler("cpu", init_scale=4.0)
        ...     scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        ...     scaler.unscale_(opt)
        ...     norm = lins.clip_grad_norm_(model, 10.0)
        ...     scaler.step(opt)
        ...     scaler.update()
        ...     return round(norm.item(), 3)
        >>> lins.testing.run((1, 2), ("node", "gpu"), train)
        [1.732, 1.732]
    """

    def __init__(
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        if not isinstance(optimizer, ShardedOptimizer):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        core = optimizer._handle.core
        found_inf.fill_(0.0 if core.gradients_finite() else 1.0)
        core.scale_gradients(inv_scale.item())
        return {found_inf.device: found_inf}

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscales unless unscale_ has, and steps unless a rank's gradient is not finite."""
        if not isinstance(optimizer, ShardedOptimizer) or not self._enabled:
            return super().step(optimizer, *args, **kwargs)
        if "closure" in kwargs:
            raise LinsRuntimeError("a closure cannot be scaled: backward before scaler.step()")
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise LinsRuntimeError("step() has been called since the last update()")
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        result = optimizer.step(*args, **kwargs)  # which skips by itself, and counts
        state["stage"] = OptState.STEPPED
        return result
