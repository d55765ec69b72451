"""lins.testing: ranks as threads, injected delays and failures, strategies."""

import threading
import time

import lins
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

AXES = ("node", "gpu")


def gather(mesh):
    return lins.distribute_tensor(torch.arange(8), mesh, "S0(gpu)").full_tensor().tolist()


def test_the_example_of_the_module():
    assert lins.testing.run((2, 2), AXES, gather) == [list(range(8))] * 4


def test_results_come_in_the_order_of_ranks():
    def check(mesh):
        time.sleep(0.01 * (3 - mesh.rank))
        return mesh.rank, mesh.coordinate(mesh.rank), mesh.size, mesh.backend

    assert lins.testing.run((2, 2), AXES, check) == [
        (0, (0, 0), 4, "threads"),
        (1, (0, 1), 4, "threads"),
        (2, (1, 0), 4, "threads"),
        (3, (1, 1), 4, "threads"),
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_any_number_of_ranks(ranks):
    assert lins.testing.run((ranks,), ("gpu",), gather) == [list(range(8))] * ranks


def test_the_first_exception_is_raised_and_wakes_the_others():
    def check(mesh):
        if mesh.rank == 2:
            raise KeyError("lost")
        lins.distribute_tensor(torch.arange(8), mesh, "S0(gpu,node)").full_tensor()

    start = time.monotonic()
    with pytest.raises(KeyError, match="lost") as caught:
        lins.testing.run((2, 2), AXES, check)
    assert time.monotonic() - start < 5
    assert caught.value.__notes__ == ["raised by rank 2 of 4"]


def test_a_rank_that_does_not_end_is_named():
    release = threading.Event()

    def check(mesh):
        if mesh.rank == 1:
            release.wait(10)

    threading.Timer(0.6, release.set).start()
    with pytest.raises(lins.LinsError, match=r"ranks \[1\] did not end within 0.3 s"):
        lins.testing.run((1, 2), AXES, check, timeout=0.3)


def test_collectives_time_out_with_their_details():
    def check(mesh):
        if mesh.rank == 0:
            time.sleep(1.2)  # its peer has given up by then
            return None
        gather(mesh)

    with pytest.raises(
        lins.LinsError, match=r"all_gather failed on rank 1 .*group \[0, 1\].*time-out 0.5 s"
    ):
        lins.testing.run((1, 2), AXES, check, timeout=0.5)


def test_delays_match_and_end():
    def seconds(fn, *args):
        start = time.monotonic()
        fn(*args)
        return time.monotonic() - start

    def check(mesh):
        gather(mesh)
        with lins.testing.delay(op="all_gather", seconds=0.1):
            assert seconds(gather, mesh) >= 0.09
        with (
            lins.testing.delay(op="broadcast", seconds=5.0),
            lins.testing.delay(role="reduce", seconds=5.0),
        ):
            assert seconds(gather, mesh) < 2.0
        d = lins.testing.delay(seconds=0.05, role="other")
        assert seconds(gather, mesh) >= 0.04
        d.remove()
        return gather(mesh)

    assert lins.testing.run((1, 2), AXES, check) == [list(range(8))] * 2


def test_failures_raise_on_their_rank():
    def check(mesh):
        failure = lins.testing.failure(op="all_gather", message="smoke") if mesh.rank == 0 else None
        try:
            gather(mesh)
        except lins.LinsError as e:
            return str(e)
        finally:
            if failure:
                failure.remove()

    with pytest.raises(lins.LinsError, match="time-out 1 s") as caught:
        lins.testing.run((1, 2), AXES, lambda mesh: check_or_raise(check, mesh), timeout=1.0)
    assert "raised by rank 1 of 2" in caught.value.__notes__


def check_or_raise(check, mesh):
    """Rank 0 must have raised the injected failure; the others their own."""
    text = check(mesh)
    if mesh.rank == 0:
        assert "smoke" in text and "rank 0" in text
        time.sleep(1.5)
    elif text:
        raise lins.LinsError(text)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_strategies_draw_what_they_say(data):
    mesh = data.draw(lins.testing.meshes(max_ranks=6, max_axes=2))
    assert 1 <= mesh.size <= 6 and len(mesh.axes) <= 2
    shape = data.draw(lins.testing.shapes(max_dims=2, max_size=4))
    assert len(shape) <= 2 and all(0 <= n <= 4 for n in shape)
    plain = data.draw(lins.testing.layouts(mesh, shape, partial=(), flat=False, owned=False))
    assert not set(str(plain)) & set("+FO")
    layout = data.draw(lins.testing.layouts(mesh, shape))
    assert lins.Layout(str(layout), shape=shape, mesh=mesh) == layout
