"""What became of one test at one Point, as plain data on the report of the test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NotRequired, Required, TypedDict

if TYPE_CHECKING:
    import pytest

PROPERTY = "trainsafe"


class RungSummary(TypedDict):
    """One rung: `worst` is the largest error as a multiple of what is allowed, at `worst_name`."""

    dtype: str
    tensors: int
    worst: float
    worst_name: str


class FirstSummary(TypedDict):
    """The finding that leads a failure's report; `where` and `pattern` are "" for none."""

    judge: str
    check: str
    where: str
    pattern: str


class PointSummary(TypedDict, total=False):
    """What became of one test at one Point.

    `seconds` has one entry per stage (launch, train, compare).  `reason` says why a Point was
    skipped or is inconclusive.  `references` says, by the key of each reference it was judged
    by, whether that was reused from an earlier run.  `first` leads a failure's report, and
    `faults` has the phase and the module or parameter of each fault that was localised.  `notes`
    are what the user should know whatever the verdict: a rung left out, ranks that were not forked.
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


def attach_summary(node: pytest.Item, summary: PointSummary) -> None:
    """Leave a test's summary on its item, from where its report takes it."""
    node.user_properties.append((PROPERTY, json.dumps(summary)))


def plural(count: int, noun: str) -> str:
    """`1 point`, `2 points`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def reason_counts(reasons: Mapping[str, int]) -> str:
    """`sp needs tp > 1 (2), heads=4 is not divisible by tp=3 (1)`."""
    return ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
