"""A cast that only the candidate makes is named if the first error is as large as its rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.code.casts import with_cast
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Cast
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Bench
from tests.support.localize.blamed_traces import noting

FOUND = Located(
    (("faulty", "Row"),),
    "/me/row.py:3",
    (Clause("module class Row"), at("set up", "/me/fit.py:9")),
)
BFLOAT16 = Cast("bfloat16", "/me/row.py:7")


@pytest.fixture(scope="module")
def rung(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    folder: Path = tmp_path_factory.mktemp("casts")
    return Bench(folder).rung(Point.of(tp=2), dtype="float64")


def result(
    rung: RungTraces, error: float | None, *casts: Cast, runs: bool = True
) -> tuple[Located, int]:
    """The result with the casts of the candidate, and how often it ran for them."""
    calls: list[int] = []

    def watched() -> Trace | None:
        calls.append(1)
        return noting(rung, *casts).candidate if runs else None

    first = Finding(verdict="fail", judge="compare", check="norm", message="", error=error)
    return with_cast(FOUND, first, rung, watched), len(calls)


@pytest.mark.parametrize(
    ("error", "cast"), [(1.7e-3, BFLOAT16), (3e-8, Cast("float32", "/me/row.py:8"))]
)
def test_a_cast_of_the_error_s_size_is_the_line_to_look_at(
    rung: RungTraces, error: float, cast: Cast
) -> None:
    found, runs = result(rung, error, cast)
    assert runs == 1
    assert found.source == cast.at
    assert found.what == (
        f"casts to {cast.dtype}, which the reference does not; module class Row at /me/row.py:3; "
        "set up at /me/fit.py:9"
    )
    assert found.rows[0][1].startswith(f"the candidate casts to {cast.dtype} at {cast.at}, and")
    assert found.rows[1:] == FOUND.rows


@pytest.mark.parametrize("error", [0.7, 1e-11, None])
def test_an_error_of_another_size_costs_no_run(rung: RungTraces, error: float | None) -> None:
    assert result(rung, error, BFLOAT16) == (FOUND, 0)


def test_without_such_a_cast_nothing_changes(rung: RungTraces) -> None:
    assert result(rung, 1.7e-3) == (FOUND, 1)
    assert result(rung, 1.7e-3, BFLOAT16, runs=False) == (FOUND, 1)
    assert result(rung, 1.7e-3, Cast("float32", "/me/row.py:8")) == (FOUND, 1)
    both = noting(RungTraces("float64", rung.reference, rung.candidate), BFLOAT16)
    alike = RungTraces("float64", rung.candidate, both.candidate)
    assert result(alike, 1.7e-3, BFLOAT16) == (FOUND, 1)
