"""Small arrays of numpy.empty are filled like all other memory, where memory is filled."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_trainsafe.judges.replay.determinism.instrument.numpy_memory import filled
from pytest_trainsafe.judges.replay.determinism.variation import variables


@pytest.mark.parametrize("shape", [(4, 8), (0,), (), (1023,)])
def test_an_array_that_the_program_makes_has_the_byte_that_glibc_fills_with(shape):
    with filled(variables(1, 1, {})):
        first = np.empty(shape, np.uint8)
        like = np.empty_like(first)
    with filled(variables(1, 2, {})):
        second = np.empty(shape, np.uint8)

    # The complements of the bytes that glibc fills freed memory with.
    assert (first == 0x3C ^ 0xFF).all()
    assert (like == 0x3C ^ 0xFF).all()
    assert (second == 0xC9 ^ 0xFF).all()


def test_an_array_in_another_order_of_axes_is_filled_whole():
    with filled(variables(1, 1, {})):
        made = np.empty((3, 5), np.uint8, order="F")
        like = np.empty_like(np.zeros((6, 10), np.uint8)[::2, ::2].T)

    assert (made == 0xC3).all()
    assert (like == 0xC3).all()


def test_objects_are_left_as_they_are():
    with filled(variables(1, 1, {})):
        assert np.empty(3, object).tolist() == [None] * 3


def test_nothing_is_filled_where_no_byte_is_set():
    before = np.empty

    with filled(()):
        assert np.empty is before
    with filled(variables(1, 1, {})):
        assert np.empty is not before
    assert np.empty is before
