"""Rows have one notation in messages: the first and the last, both included."""

from __future__ import annotations

import numpy as np

from pytest_trainsafe.align.words import describe, name_rows, wrong_rows
from pytest_trainsafe.core.layout import Slices


def test_rows_of_slices_and_of_indices_are_written_alike() -> None:
    ranges = (((0, 4, 1), (6, 7, 1), (8, 14, 2)), ((0, 3, 1),))
    placement = Slices(ranges, (16, 3), ("tp",))

    assert describe((placement,)) == (
        "rows 0-3, 6, 8-12 in steps of 2 of 16 in dimension 0 by slices over tp"
    )
    assert name_rows([np.arange(4), np.arange(3)], (16, 3)) == "rows 0-3 of 16 in dimension 0"


def test_a_rank_without_rows_says_so() -> None:
    placement = Slices((((3, 3, 1),),), (16,), ("tp",))

    assert describe((placement,)) == "rows none of 16 in dimension 0 by slices over tp"


def test_a_size_that_ranks_cannot_share_evenly_names_the_rule_that_excludes_it() -> None:
    short = wrong_rows("hole", [0, 1], 10, 11, 32, "of dimension 0")
    halved = wrong_rows("hole", [0], 8, 16, 32, "of dimension 0")

    assert "hold 10 of the 32 rows of dimension 0, but the layout gives 11. 32 rows" in short
    assert "with @requires(divides(PARAMETER, AXIS)) at the program (both are in" in short
    assert "divides" not in halved
