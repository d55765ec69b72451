"""lins.no_communication: the first collective of a rank raises and names its line."""

import inspect

import lins
import pytest
import torch
from lins.testing import run


def line():
    """file:line of the next line of the caller."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno + 1}"


def test_the_first_collective_raises_and_names_the_line_that_caused_it():
    def f(m):
        x = lins.distribute_tensor(torch.arange(4.0), m, "S0(gpu)")
        with lins.no_communication():
            y = x * 2 + x
            total = y.sum()
            with pytest.raises(lins.LinsError, match="no_communication") as e:
                where = line()
                total.full_tensor()
        message = str(e.value)
        assert where in message and "total.full_tensor()" in message
        assert "all_reduce of 4 bytes among ranks [0, 1]" in message
        assert isinstance(e.value, RuntimeError)
        return total.full_tensor().item()  # allowed again

    assert run((1, 2), ("node", "gpu"), f) == [18.0, 18.0]


def test_a_backward_that_communicates_names_the_call():
    def f(m):
        x = lins.rand(4, mesh=m).requires_grad_()
        y = x.redistribute("S0(gpu)").sum()
        with lins.no_communication(), pytest.raises(lins.LinsError, match="all_gather") as e:
            where = line()
            y.backward()
        assert where in str(e.value)

    run((1, 2), ("node", "gpu"), f)


def test_groups_of_one_and_local_steps_are_allowed():
    def f(m):
        x = lins.rand((4, 4), mesh=m)
        with lins.no_communication():
            y = x.redistribute("S0(gpu)").redistribute("S0(gpu) S1(node)")
            return y.redistribute("S0(gpu)").equal(x) if m.size == 1 else True

    assert run((1, 1), ("node", "gpu"), f) == [True]
    assert run((1, 3), ("node", "gpu"), f) == [True] * 3


def test_blocks_nest_and_belong_to_a_rank():
    def f(m):
        x = lins.rand(4, mesh=m, placements="S0(gpu)")
        with lins.no_communication():
            with lins.no_communication():
                pass
            with pytest.raises(lins.LinsError):
                x.full_tensor()
        # Here only rank 0's guard is up, and rank 0 does not communicate.
        if m.rank == 0:
            with lins.no_communication():
                lins.rand(4, mesh=m)
        return x.full_tensor().shape[0]

    assert run((1, 2), ("node", "gpu"), f) == [4, 4]
