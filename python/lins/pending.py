"""Parameters whose update is on its way: reading them through their module waits for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lins import _core


class Updates:
    """Whether updates of a model may be under way: what every read asks first, so a plain flag."""

    def __init__(self, core: _core.ShardedModel) -> None:
        self._core = core
        self.pending = False

    def started(self) -> None:
        """To be called after an optimizer's step."""
        self.pending = self._core.updating

    def finish(self, unit: int | None = None) -> None:
        """Waits for the updates of one unit, or of all. Raises what has failed."""
        self.pending = self._core.finish_updates(unit)


class AwaitedParameters(dict):
    """The `_parameters` of a module, with reads that wait for updates of the module's parameters.

    Only where P is not cut: cut parameters are gathered before use, which waits by itself.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter | None], updates: Updates, unit: int | None
    ) -> None:
        super().__init__(parameters)
        self._updates = updates
        self._unit = unit

    def _wait(self) -> None:
        # A compiler must not take the flag for part of the program; what it compiles runs inside a
        # unit, whose hooks have waited.
        if not torch.compiler.is_compiling() and self._updates.pending:
            self._updates.finish(self._unit)

    def __getitem__(self, name: str) -> nn.Parameter | None:
        self._wait()
        return dict.__getitem__(self, name)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: D102 - of dict
        self._wait()
        return dict.get(self, name, default)

    def items(self):  # noqa: D102 - of dict
        self._wait()
        return dict.items(self)

    def values(self):  # noqa: D102 - of dict
        self._wait()
        return dict.values(self)

    def __reduce__(self):
        return dict, (dict(self),)


def await_updates(model: nn.Module, updates: Updates, unit_of: dict[int, int]) -> None:
    """Makes reads of these parameters, {id: unit}, wait for their updates."""
    for module in model.modules():
        units = {unit_of[id(p)] for p in module._parameters.values() if id(p) in unit_of}
        if units:
            # Parameters that several units share belong to the root, others of the module may not.
            unit = units.pop() if len(units) == 1 else None
            module.__dict__["_parameters"] = AwaitedParameters(module._parameters, updates, unit)
