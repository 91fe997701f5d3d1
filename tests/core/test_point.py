"""Points: rank numbering and ids."""

import pytest

from pytest_trainsafe.core.point import Point


def test_ranks_are_numbered_tp_fastest_then_cp_dp_pp():
    point = Point.of(pp=2, dp=2, tp=2)

    assert point.world_size == 8
    assert point.coordinates(1) == {"tp": 1, "cp": 0, "dp": 0, "pp": 0}
    assert point.coordinates(2) == {"tp": 0, "cp": 0, "dp": 1, "pp": 0}
    assert point.coordinates(4) == {"tp": 0, "cp": 0, "dp": 0, "pp": 1}


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (Point.of(tp=2, cp=1), "tp2-cp1"),
        (Point.of(sp=True, compile=False, dtype="bfloat16"), "sp-nocompile-bfloat16"),
        (Point.of(recompute="full_block", layers=8), "recomputefullblock-layers8"),
        (Point(), "single"),
    ],
)
def test_an_id_holds_only_letters_digits_and_dashes(point, expected):
    assert point.id == expected
