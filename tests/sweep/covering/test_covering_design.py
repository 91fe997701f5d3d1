"""Covering designs: every valid tuple is covered, by few rows, the same ones each time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.sweep.covering import design as module
from pytest_trainsafe.sweep.covering.design import design


def tuples(rows, axes, strength):
    return {
        (group, tuple(row[axis] for axis in group))
        for row in rows
        for group in itertools.combinations(range(axes), strength)
    }


@pytest.mark.parametrize(
    ("values", "axes", "strength", "most", "best"),
    [
        (3, 4, 2, 9, 9),
        (2, 10, 2, 8, 6),
        (4, 5, 2, 18, 16),
        (3, 13, 2, 20, 15),
        (2, 5, 3, 12, 10),
        (3, 4, 3, 27, 27),
    ],
)
def test_a_design_is_not_much_larger_than_the_best_known(values, axes, strength, most, best):
    """`best` is the smallest covering array number that is published (Colbourn's tables)."""
    made = design([values] * axes, strength)

    assert best <= len(made.rows) <= most
    whole = itertools.product(range(values), repeat=strength)
    expected = set(itertools.product(itertools.combinations(range(axes), strength), whole))
    assert tuples(made.rows, axes, strength) == expected
    assert (made.covered, made.undecided) == (len(expected), 0)


@given(
    levels=st.lists(st.integers(1, 3), min_size=2, max_size=5),
    excluded=st.sets(st.integers(0, 242), max_size=200),
    enumerated=st.booleans(),
)
def test_all_rows_are_valid_and_cover_exactly_the_valid_pairs(levels, excluded, enumerated):
    every = list(itertools.product(*map(range, levels)))
    valid = {row for number, row in enumerate(every) if number not in excluded}

    with pytest.MonkeyPatch.context() as patch:
        if not enumerated:
            patch.setattr(module, "MAX_POINTS", 0)
        made = design(levels, 2, lambda row: row in valid)

    assert set(made.rows) <= valid
    assert tuples(made.rows, len(levels), 2) == tuples(valid, len(levels), 2)
    assert made.covered == len(tuples(valid, len(levels), 2))
    assert made.undecided == 0
    assert made.valid == (len(valid) if enumerated else None)


def test_designs_are_deterministic():
    def odd(row):
        return sum(row) % 3 != 2

    assert design([3] * 6, 2, odd) == design([3] * 6, 2, odd)
    assert design([5] * 6, 2, odd) == design([5] * 6, 2, odd)


def test_a_pair_without_a_known_valid_row_is_undecided_if_not_all_rows_are_tried():
    """In a product of 4 ** 9 rows, the last two axes take the value 3 in one row only."""

    def rare(row):
        return row[7:] != (3, 3) or row == (3, 1, 2, 3, 0, 1, 2, 3, 3)

    made = design([4] * 9, 2, rare)

    assert made.valid is None
    assert all(rare(row) for row in made.rows)
    assert made.undecided == 1
    assert made.covered == 36 * 16 - 1


def test_a_product_without_a_valid_row_has_an_empty_design():
    assert design([2, 2], 2, lambda row: False).rows == ()
    assert design([4] * 9, 2, lambda row: False).rows == ()
