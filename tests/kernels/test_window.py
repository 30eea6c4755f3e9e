"""A window on bytes of another owner: what keeps them, and when it lets them go."""
import gc
import sys

import pytest

from seglog._kernels.window import Window


@pytest.mark.parametrize("view", [lambda owner: owner, memoryview, lambda owner: memoryview(owner)[5:50]])
def test_a_window_in_a_cycle_of_garbage_gives_its_bytes_back(monkeypatch, view):
    """The collector clears what is in the cycle in any order: a memoryview before the window that has its bytes."""
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    owner = bytearray(100)
    cycle = {"view": view(owner)}
    cycle.update(window=Window(cycle["view"]), itself=cycle)
    del cycle
    gc.collect()
    assert not said
    owner.append(0)     # BufferError while anybody has it


def test_a_window_of_a_memoryview_shows_its_part_and_keeps_the_owner():
    owner = bytearray(range(100))
    view = memoryview(owner)[5:50]
    window = Window(view)
    view.release()
    assert bytes(memoryview(window)) == bytes(range(5, 50))
    with pytest.raises(BufferError):
        owner.append(0)
    del window
    owner.append(0)


def test_a_window_shows_bytes_whose_owner_shows_them_in_no_one_piece():
    numpy = pytest.importorskip("numpy")
    every_second = numpy.arange(100, dtype="u1")[::2]
    window = Window(memoryview(every_second)[3:4])
    assert bytes(memoryview(window)) == bytes([6])
    with pytest.raises(ValueError, match="contiguous"):
        Window(every_second)
