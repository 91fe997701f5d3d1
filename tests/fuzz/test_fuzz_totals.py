"""The row of a fuzz test in the summary has the number of its examples, not one of its Points."""

from __future__ import annotations

from typing import Any

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.fuzz.failures.ending import PASSED, Ending
from pytest_trainsafe.fuzz.totals import fuzz_summary
from pytest_trainsafe.sweep.point_summary import PointSummary, RungSummary

POINTS = [Point.of(tp=size) for size in (2, 3, 4)]


class Ran:
    """What a Runner keeps: here of three Points."""

    def __init__(self, *verdicts: Any) -> None:
        self.applied: dict[str, int] = {}
        self.unavailable: dict[str, None] = {}
        self.summaries: list[PointSummary] = [
            {
                "point": str(point),
                "verdict": verdict,
                "axes": dict(point),
                "rungs": [
                    RungSummary(
                        dtype="float64", tensors=9, worst=point.size("tp") % 4 / 8, worst_name=""
                    )
                ],
                "seconds": {"train": 2.0},
            }
            for point, verdict in zip(POINTS, verdicts, strict=True)
        ]


def summary(ran: Any, *endings: Ending, failing: Point | None = None) -> Any:
    return fuzz_summary(
        "test_it", "gpt.train", ran, dict(zip(POINTS, endings, strict=True)), failing
    )


def test_a_passed_test_has_the_number_of_examples_and_the_largest_error() -> None:
    found = summary(Ran("pass", "pass", "pass"), PASSED, PASSED, PASSED)

    assert (found["point"], found["axes"]) == ("3 examples", {"examples": 3})
    assert (found["verdict"], found["seconds"]) == ("pass", {"train": 6.0})
    assert found["rungs"][0]["worst"] == 0.375  # that of tp=3
    assert "test_it: 3 points run, 3 passed" in found["notes"]


def test_a_failed_test_has_the_smallest_failing_point() -> None:
    failed = Ending("fails", AssertionError(), "bug")
    found = summary(Ran("pass", "fail", "fail"), PASSED, failed, failed, failing=POINTS[1])

    assert (found["point"], found["verdict"]) == ("tp=3", "fail")
    assert found["axes"] == {"tp": 3}


def test_a_test_without_a_failure_is_inconclusive_if_one_point_is() -> None:
    doubt = Ending("inconclusive", AssertionError(), reason="inconclusive: moved")
    found = summary(Ran("pass", "inconclusive", "pass"), PASSED, doubt, PASSED)

    assert (found["verdict"], found["reason"]) == ("inconclusive", "inconclusive: moved")
    assert found["axes"] == {"examples": 3}
