"""The result of one test at one Point, as plain data on the test's report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NotRequired, Required, TypedDict

if TYPE_CHECKING:
    import pytest

PROPERTY = "trainsafe"


class RungSummary(TypedDict):
    """One rung: `worst` is the largest error as a multiple of its tolerance, at `worst_name`."""

    dtype: str
    tensors: int
    worst: float
    worst_name: str


class FirstSummary(TypedDict):
    """The first Finding of a failure's report; `where` and `pattern` are "" if there is none."""

    judge: str
    check: str
    where: str
    pattern: str


class PointSummary(TypedDict, total=False):
    """The result of one test at one Point.

    `seconds` has one entry per stage (launch, train, compare).  `reason` says why a Point was
    skipped or is inconclusive.  `references` says, for the cache key of each reference, whether
    it was reused from an earlier pytest run.  `first` is the first Finding of a failure's report;
    `faults` has the phase and the module or parameter of each localised fault.  `notes` apply to
    any verdict, for example that a rung was left out or that ranks were not forked.  `observed` is
    the folder of the trace that a pack may be learned from.
    """

    point: Required[str]
    verdict: Required[Literal["pass", "fail", "inconclusive", "skipped"]]
    reason: NotRequired[str]
    rungs: NotRequired[list[RungSummary]]
    seconds: NotRequired[dict[str, float]]
    references: NotRequired[dict[str, bool]]
    first: NotRequired[FirstSummary]
    faults: NotRequired[list[tuple[str, str]]]
    notes: NotRequired[list[str]]
    observed: NotRequired[str]


def attach_summary(node: pytest.Item, summary: PointSummary) -> None:
    """Stores a test's summary in its item's `user_properties`, which its report includes."""
    node.user_properties.append((PROPERTY, json.dumps(summary)))


def plural(count: int, noun: str) -> str:
    """`1 point`, `2 points`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def reason_counts(reasons: Mapping[str, int]) -> str:
    """`sp needs tp > 1 (2), heads=4 is not divisible by tp=3 (1)`."""
    return ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
