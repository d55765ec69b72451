"""The examples of the optimizers' docstrings."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module, examples", [("adam", 1), ("scaler", 1), ("wrapped", 1)])
def test_examples_run(module, examples):
    result = doctest.testmod(importlib.import_module(f"lins.optimizers.{module}"))
    assert result.failed == 0
    assert result.attempted >= 2 * examples
