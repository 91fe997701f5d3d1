"""The result of one test at one Point, as plain data on the test's report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NotRequired, Required, TypedDict

from pytest_trainsafe.core.cut_text import cut
from pytest_trainsafe.printable import printable

if TYPE_CHECKING:
    import pytest

    from pytest_trainsafe.core.point import AxisValue, Point

PROPERTY = "trainsafe"

#: The check of a Point whose missing annotations were written to a file, which later Points read.
ANNOTATED = "annotations:written"

#: The maximum length of a property with a single fact; longer ones are cut.
LONGEST = 1_000


class RungSummary(TypedDict):
    """The result in one judged dtype (a rung of the ladder of dtypes).

    `worst` is the largest ratio of an error to its tolerance, and `worst_name` the tensor with this
    ratio.
    """

    dtype: str
    tensors: int
    worst: float
    worst_name: str


class FirstSummary(TypedDict, total=False):
    """The first Finding of a failure's report; an unknown text is "", an unknown number None.

    `tensor` is the wrong tensor's path and kind, `module` its module; `source` is the "file:line"
    of the Finding.
    """

    judge: Required[str]
    check: Required[str]
    where: Required[str]
    pattern: Required[str]
    pattern_name: str
    cause: str
    tensor: str
    module: str
    dtype: str
    error: float | None
    allowed: float | None
    message: str
    source: str


class PlaceSummary(TypedDict):
    """The faulty code that localisation found: its "file:line", and a phrase that describes it."""

    source: str
    what: str


class PointSummary(TypedDict, total=False):
    """The result of one test at one Point.

    `rungs` has the result in each dtype that was judged.  `seconds` has one entry per stage
    (launch, train, compare), and `waited` is how long ranks that other test runs held were not
    free.  `reason` says why a Point was skipped or is inconclusive.
    `references` says, for the cache key of each reference, whether it was reused from an earlier
    pytest run.  `first` is the first Finding of a failure's report; `faults` has the phase and the
    module or parameter of each localised fault, and `look_at` the place in the code.  `program` and
    `axes` are the program's path and the value of each axis, and `arguments` are its arguments
    beside the axes, as one text.  `facts` has more on a failure that a
    page shows, as rows of label and text.  `notes` apply to any verdict, for
    example that a dtype was not judged or that ranks were not forked.  `artefacts` has the
    paths of files that judges made, by what they are; a name that starts with `_` is not shown.
    """

    point: Required[str]
    verdict: Required[Literal["pass", "fail", "inconclusive", "skipped"]]
    reason: NotRequired[str]
    rungs: NotRequired[list[RungSummary]]
    seconds: NotRequired[dict[str, float]]
    waited: NotRequired[float]
    references: NotRequired[dict[str, bool]]
    first: NotRequired[FirstSummary]
    faults: NotRequired[list[tuple[str, str]]]
    look_at: NotRequired[PlaceSummary]
    program: NotRequired[str]
    axes: NotRequired[dict[str, AxisValue]]
    arguments: NotRequired[str]
    facts: NotRequired[list[tuple[str, str]]]
    notes: NotRequired[list[str]]
    artefacts: NotRequired[dict[str, str]]


def attach_summary(node: pytest.Item, summary: PointSummary) -> None:
    """Stores a test's summary in its item's `user_properties`, which its report includes.

    pytest also writes these properties to JUnit files, so the main facts are stored as separate
    properties too, for tools that read those files.
    """
    node.user_properties.append((PROPERTY, json.dumps(summary)))
    first = summary.get("first")
    found = {"verdict": str(summary["verdict"])}
    if first is not None:
        found["first_wrong"] = first["where"] or first.get("message", "")
        found["pattern"] = first["pattern"]
        place = summary.get("look_at")
        found["module"] = first.get("module", "")
        found["source"] = place["source"] if place is not None else first.get("source", "")
    for name, text in found.items():
        if text:
            _attach(node, name, text)


def attach_point(node: pytest.Item, program: str, point: Point) -> None:
    """Stores a test's id, program and Point in its `user_properties`, whatever its verdict.

    A report on several JUnit files needs them, because these files have no node ids and lines.
    """
    path, line, _ = node.location
    found = {
        "id": node.nodeid,
        "location": f"{path}:{(line or 0) + 1}",
        "root": str(node.config.rootpath),
        "program": program,
        "point": str(point),
    }
    for name, text in found.items():
        _attach(node, name, text)


def _attach(node: pytest.Item, name: str, text: str) -> None:
    node.user_properties.append((f"{PROPERTY}_{name}", printable(cut(text, LONGEST))))


def plural(count: int, noun: str) -> str:
    """The count and the noun, in the plural unless the count is 1: `1 point`, `2 points`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def reason_counts(reasons: Mapping[str, int]) -> str:
    """The reasons, each with its count.

    For example `sp needs tp > 1 (2), heads=4 is not divisible by tp=3 (1)`.
    """
    return ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
