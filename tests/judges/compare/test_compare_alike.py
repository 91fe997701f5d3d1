"""An output after a fault is cut like the same output of another layer, if its shapes say so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_trainsafe.core.layout import Layout, Partial, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.declarations.alike import like_others
from pytest_trainsafe.judges.compare.declarations.suggest import MissingLayout
from tests.support.compare.traces import Bench
from tests.support.compare.undeclared_layouts import undeclared

COLUMNS, ROWS, SUM = (Shard(1, "tp"),), (Shard(0, "tp"),), (Partial("tp", "sum"),)


def need(layout: Layout, name: str = "fc1") -> MissingLayout:
    return MissingLayout("modules", name, "output", (), layout, "default", 2)


@pytest.mark.parametrize(
    ("module", "needs", "expected"),
    [
        ("fc1", [need(COLUMNS)], [COLUMNS]),
        ("fc1", [need(ROWS)], []),
        ("fc1", [need(SUM)], []),
        ("fc1", [need(COLUMNS), need(ROWS)], []),
        ("fc1", [need(COLUMNS, "fc2")], []),
        ("fc2", [need(COLUMNS, "fc2")], []),
    ],
)
def test_a_layout_is_taken_over_only_if_it_is_the_only_one_and_fits_the_shapes(
    bench: Bench, module: str, needs: Sequence[MissingLayout], expected: list[Layout]
) -> None:
    rung = undeclared(bench.rung(Point.of(tp=2), dtype="float64"))
    target = TensorId(0, 0, "activation", module, "output")
    assert [each.added for each in like_others(rung, [target], needs)] == expected
