"""The axes along which ranks part follow from which ranks are of one kind."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.mesh.parting import classes_of, parted, parting_text
from pytest_trainsafe.core.point import Point

POINT = Point.of(tp=2, dp=2)


def _of(axes: tuple[str, ...]) -> list[list[int]]:
    places = {rank: POINT.coordinates(rank) for rank in range(4)}
    return classes_of({rank: tuple(at[axis] for axis in axes) for rank, at in places.items()})


@pytest.mark.parametrize("axes", [("tp",), ("dp",), ("tp", "dp")])
def test_classes_part_along_the_fewest_axes_that_tell_them_apart(axes: tuple[str, ...]) -> None:
    assert parted(POINT, _of(axes)) == axes


def test_one_rank_that_differs_needs_both_axes_and_equal_ranks_none() -> None:
    assert parted(POINT, [[0, 2, 3], [1]]) == ("tp", "dp")
    assert parted(POINT, [[0, 1, 2, 3]]) == ()
    assert parting_text(POINT, [[0, 1, 2, 3]], "agree") == ""


def test_the_text_names_the_classes_and_the_axes_along_which_they_agree() -> None:
    tp = " / ".join(", ".join(map(str, ranks)) for ranks in _of(("tp",)))
    assert parting_text(POINT, _of(("tp",)), "draw equal numbers") == (
        f"ranks that draw equal numbers: {tp}, so ranks part along tp and agree along dp"
    )
