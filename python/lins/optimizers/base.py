"""What all optimizers of lins share, on the side of torch.optim.Optimizer."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from lins.errors import LinsError, LinsRuntimeError, LinsValueError
from lins.optimizers import checkpoint
from lins.optimizers.groups import ParamGroups, resolve_groups
from lins.sharding import handle_of

_log = logging.getLogger("lins")


class ShardedOptimizer(torch.optim.Optimizer):
    """A torch.optim.Optimizer over a wrapped model's optimizer-state shards.

    step() updates this rank's slices in one pass and brings them to all ranks that hold them: it is
    collective. A parameter without gradient on every rank is left alone. A gradient that is not
    finite on any rank skips the step on all: see skipped_steps. Schedulers, hooks and closures work
    as with any torch optimizer.

    Subclasses say which rule of lins._core they are, and turn a group's options into its own.
    """

    _rule: ClassVar[type]
    _fixed_states: ClassVar[bool] = True  # all of a parameter's states are there from the start

    def __init__(
        self,
        model: nn.Module,
        defaults: dict[str, Any],
        param_groups: ParamGroups,
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        self._handle = handle_of(model)
        self._core: Any = None
        # A rank that finds a mistake must not leave the others waiting: all compare first.
        error: LinsError | None = None
        said = ""
        try:
            if rounding not in ("nearest", "stochastic"):
                raise LinsValueError(f"rounding={rounding!r}: legal are 'nearest' and 'stochastic'")
            super().__init__(resolve_groups(self._handle, param_groups), defaults)
            options = self._all_options()
            said = f"{type(self).__name__} {rounding} {seed} {self._say()}"
        except LinsError as e:
            error, said = e, f"an error: {e}"
        self._handle.core.mesh.world.check_agreement("the optimizer", said)
        if error is not None:
            raise error
        self._core = self._make(options)
        if rounding == "stochastic":
            self._core.use_stochastic_rounding(seed)

    def _make(self, options: list[Any]) -> Any:
        group_of = {
            self._handle.name_of[id(p)]: i
            for i, g in enumerate(self.param_groups)
            for p in g["params"]
        }
        return self._rule(self._handle.core, options, group_of)

    @abstractmethod
    def _options(self, group: dict[str, Any]) -> Any:
        """A group's options as the core takes them. Raises LinsError for bad values."""

    def _all_options(self, groups: list[dict[str, Any]] | None = None) -> list[Any]:
        return [self._options(g) for g in (self.param_groups if groups is None else groups)]

    def _say(self) -> str:
        """All groups as text, for ranks to compare."""
        lines = []
        for g in self.param_groups:
            options = {k: float(v) if isinstance(v, torch.Tensor) else v for k, v in g.items()}
            options["params"] = [self._handle.name_of[id(p)] for p in g["params"]]
            lines.append(str(options))
        return "\n".join(lines)

    @property
    def skipped_steps(self) -> int:
        """Steps that a gradient which was not finite has skipped so far."""
        return self._core.skipped_steps

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch.amp.GradScaler asks for first."""
        raise LinsRuntimeError(
            "torch.amp.GradScaler looks for gradients where lins has none, and ranks would not "
            "agree: use lins.GradScaler, which has the same interface"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while the optimizer is made: groups are fixed afterwards."""
        if self._core is not None:
            raise LinsValueError(
                "param_groups are fixed once the optimizer exists: pass them to it"
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, and an unfinished accumulation."""
        self._handle.core.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters. Collective. Without gradients nothing changes.

        Raises LinsError, before anything has changed, for options of a group that are not legal.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._update():
            _log.warning(
                "step skipped on every rank: a gradient is not finite (%d so far)",
                self.skipped_steps,
            )
        self._handle.updates.started()
        return loss

    def _update(self) -> bool:
        return self._core.step(self._all_options())

    def grad_norms(self, norm_type: float = 2.0) -> list[torch.Tensor]:
        """The norm of each group's gradients, in the order of param_groups, as float tensors.

        norm_type: 1, 2 or inf. Collective: one small reduction. NaN where a gradient is not finite.
        """
        return [torch.tensor(n) for n in self._core.group_norms(float(norm_type))]

    # --- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with states as DTensors that share memory with the optimizer.

        {"state": {index: {"step": tensor, "exp_avg": DTensor, ...}}, "param_groups": [...]};
        parameters that were never updated have no entry. Groups also name their parameters
        ("param_names"). Nothing is communicated.
        """
        return checkpoint.pack(self, self._records())

    def full_state_dict(self) -> dict[str, Any]:
        """The same with whole tensors, which torch's optimizers load too. Collective."""
        with torch.no_grad():
            device = next(iter(self._handle.names.values())).device
            return checkpoint.gather(self.state_dict(), device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over states and options of state_dict(), full_state_dict() or torch's own rule.

        States are whole tensors, the same on every rank, or DTensors of the layout that they have
        here. Parameters without an entry start anew. Nothing is communicated.

        Raises LinsError, with nothing changed, for another number of groups, other parameters,
        missing or unexpected states, and states of other shapes or layouts.
        """
        checkpoint.load(self, state_dict)

    def _records(self) -> list[tuple[str, int | torch.Tensor | None, dict[str, Any]]]:
        """[(parameter, updates so far, its states)] in the order of the model."""
        return self._core.records()

    def _like(self, name: str, value: Any, here: Any) -> Any:
        """What a parameter's loaded state must look like, given the one here; None: anything."""
        return here

    def _load_records(self, records: list[tuple[str, Any, dict[str, Any]]]) -> None:
        self._core.load(records)
