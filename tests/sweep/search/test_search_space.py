"""The space of valid Points: draws are repaired, contradictions are named."""

from __future__ import annotations

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.sweep import divides, requires
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.search.space import Space


@requires(divides("heads", "tp"))
def train(ctx, heads=4, layers=2, tied=False):
    raise AssertionError("nothing here is trained")


def space(most=4, **axes):
    return Space(read_marker([train], axes), Settings(max_world_size=most))


def test_combinations_of_mesh_axes_respect_the_world_size_and_omit_the_reference():
    bases = space(tp=[1, 2, 4], cp=[1, 2, 3], heads=[4]).bases

    assert set(bases) == {(2, 1), (1, 2), (1, 3), (4, 1), (2, 2)}


def test_a_single_device_is_valid_if_the_candidate_has_arguments_of_its_own():
    own = space(tp=[1, 2], candidate_args={"tied": True})

    assert (1,) in own.bases
    assert own.is_valid(Point.of(tp=1))


def test_a_single_device_is_valid_only_with_recomputation():
    both = space(tp=[1, 2], recompute=[False, True])

    assert both.is_valid(Point.of(tp=1, recompute=True))
    assert not both.is_valid(Point.of(tp=1, recompute=False))


def test_an_invalid_point_is_repaired_by_one_axis_without_changing_the_mesh():
    repaired = space(tp=[2, 3], heads=[2, 3, 4], layers=[1, 2]).repaired

    assert repaired({"tp": 3, "heads": 4, "layers": 2}) == Point.of(tp=3, heads=3, layers=2)
    assert repaired({"tp": 2, "heads": 4, "layers": 2}) == Point.of(tp=2, heads=4, layers=2)


def test_a_move_may_change_a_second_axis_but_not_one_that_is_kept():
    moved = space(tp=[1, 2, 3], heads=[2, 3], layers=[1, 2]).moved
    start = Point.of(tp=3, heads=3, layers=1)

    assert moved(start, "tp", 2) == Point.of(tp=2, heads=2, layers=1)
    assert moved(start, "tp", 2, kept=["heads"]) is None


def test_values_are_sorted_by_their_cost():
    own = space(layers=[4, 1], tp=[2, 1], dtype=["bfloat16", "float64"], sp=[True, False])

    assert list(own.values.items()) == [
        ("tp", (1, 2)),
        ("layers", (1, 4)),
        ("dtype", ("float64", "bfloat16")),
        ("sp", (False, True)),
    ]
    assert [axis for axis, _ in own.bases[2,]] == ["layers", "tp", "dtype", "sp"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"tp": [8]}, "every combination of tp=8 has more than 4 ranks; give smaller sizes"),
        (
            {"tp": [3, 4], "heads": [5, 7]},
            r"train: none of the 4 points .* Reasons:\n  heads=5 is not divisible by tp=3 \(1\)\n",
        ),
        (
            {"tp": [3], "heads": [5, 7], "layers": list(range(1, 200))},
            r"no valid point was found among \d+ of 398;",
        ),
        ({"tp": [1], "layers": [1, 2]}, "the candidate is the reference itself here"),
    ],
)
def test_axes_without_a_valid_point_are_an_error_with_the_reasons(axes, message):
    with pytest.raises(SweepError, match=message):
        space(**axes).bases  # noqa: B018
