"""The result of each marked test, from pytest's reports.

The terminal summary and the reports for GitHub Actions are made from Outcomes. Reports may come
from workers of pytest-xdist, and any test can record a property, so nothing is assumed about the
properties' values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_trainsafe.core.usage import excerpt
from pytest_trainsafe.sweep.point_summary import PROPERTY, PointSummary
from pytest_trainsafe.sweep.signature import MARKER

if TYPE_CHECKING:
    import pytest

    from pytest_trainsafe.report.run.junit import JUnitReport

VERDICTS = ("fail", "error", "inconclusive", "pass", "skipped")

#: The most characters of a text that an Outcome keeps.
MAX_TEXT = 2_000

#: The most facts about a failure that are kept.
MAX_FACTS = 20


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first wrong tensor of a failing Point; unknown texts are "", unknown numbers are None.

    `where` names the tensor with its step and micro-batch; `tensor` names it without them. If
    `located` is true, localisation found the faulty code: `source` is the "file:line" of this
    code, and `what` is a phrase that describes it. Otherwise `source` is the "file:line" of
    suspected code, such as the class of the module that computes the tensor, and `what` is "".
    `facts` has more about the failure for a page, as rows of label and text.
    """

    check: str = ""
    where: str = ""
    tensor: str = ""
    module: str = ""
    message: str = ""
    pattern: str = ""
    pattern_name: str = ""
    cause: str = ""
    dtype: str = ""
    error: float | None = None
    allowed: float | None = None
    source: str = ""
    what: str = ""
    located: bool = False
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one test at one Point.

    `verdict` is one of VERDICTS. It is "error" if the test failed and the comparison was neither
    "fail" nor "inconclusive", for example because ranks died. `failed` says whether pytest reports
    the test as failed; it is false where the verdict is "fail" but the test is marked xfail. `axes`
    has the axis values of the Point as text, `point` is the text of the whole Point, and
    `arguments` that of the program's arguments beside the axes. `tensors` has, for each judged
    dtype, the number of compared tensors. `worst` is the largest ratio of an error to its
    allowance, None if nothing was compared; `worst_name` names the tensor with this ratio.
    `location` is the "file:line" of the test, relative to the root directory. `line` is what
    pytest's short summary says of a failed test, "" if it is not known.
    """

    nodeid: str
    verdict: str
    failed: bool = False
    program: str = ""
    point: str = ""
    axes: tuple[tuple[str, str], ...] = ()
    tensors: tuple[int, ...] = ()
    worst: float | None = None
    worst_name: str = ""
    seconds: float = 0.0
    reason: str = ""
    first: FirstDifference = FirstDifference()
    location: str = ""
    line: str = ""
    arguments: str = ""

    @property
    def test(self) -> str:
        """The node id without the parameters."""
        return self.nodeid.partition("[")[0]


@dataclass(slots=True)
class _Test:
    """The data on one test from all of its reports."""

    values: dict[str, str]
    summaries: dict[str, dict[str, object]]
    marked: bool = False
    failed: bool = False
    message: str = ""
    seconds: float = 0.0
    location: str = ""


def outcomes(reports: Iterable[pytest.TestReport | JUnitReport]) -> list[Outcome]:
    """The Outcomes of the marked tests, in the order of their first reports."""
    return [outcome for nodeid, test in _tests(reports) for outcome in _of_test(nodeid, test)]


def seconds_of(reports: Iterable[pytest.TestReport]) -> dict[str, float]:
    """The seconds of each marked test that ran, with its setup and teardown."""
    return {
        nodeid: test.seconds
        for nodeid, test in _tests(reports)
        if test.marked and not any(s.get("verdict") == "skipped" for s in test.summaries.values())
    }


def _tests(reports: Iterable[pytest.TestReport | JUnitReport]) -> list[tuple[str, _Test]]:
    found: dict[str, _Test] = {}
    for report in reports:
        keywords = getattr(report, "keywords", {})
        if getattr(report, "when", None) not in ("setup", "call", "teardown"):
            continue
        test = found.setdefault(report.nodeid, _Test({}, {}))
        test.marked |= MARKER in keywords
        test.seconds += report.duration
        path, line, _ = report.location
        test.location = f"{path}:{line + 1}" if line is not None else path
        if report.outcome == "failed":
            test.message = test.message or _crash(report)
            test.failed = True
        for name, value in report.user_properties:
            # A test's reports repeat the properties of its earlier phases.
            if name == PROPERTY and isinstance(value, str) and value not in test.summaries:
                test.summaries[value] = _decoded(value)
            elif isinstance(value, str):
                test.values.setdefault(str(name), value)
    return list(found.items())


def _of_test(nodeid: str, test: _Test) -> list[Outcome]:
    made = [
        _judged(nodeid, test, summary)
        for summary in test.summaries.values()
        if summary.get("verdict") in VERDICTS
    ]
    made = _joined(made)
    explained = any(outcome.verdict in ("fail", "inconclusive") for outcome in made)
    if test.failed and test.marked and not explained:
        judged = next((outcome for outcome in made if outcome.verdict == "pass"), None)
        made = [_error(nodeid, test, judged)]
    return made


def _joined(made: Sequence[Outcome]) -> list[Outcome]:
    """The Outcomes of one test, in which assertions on one Point share one.

    The Outcome of an assertion that compared no tensor is joined with that of the Point's
    comparison, if there is one: the worse verdict is kept.
    """
    rows = [outcome for outcome in made if outcome.tensors]
    for outcome in (each for each in made if not each.tensors):
        at = next((i for i, row in enumerate(rows) if row.point == outcome.point), None)
        if at is None:
            rows.append(outcome)
        elif VERDICTS.index(outcome.verdict) < VERDICTS.index(rows[at].verdict):
            verdict, reason, first = outcome.verdict, outcome.reason, outcome.first
            rows[at] = replace(rows[at], verdict=verdict, reason=reason, first=first)
    return rows


def _error(nodeid: str, test: _Test, judged: Outcome | None) -> Outcome:
    """The Outcome of a test that failed although its Point passed, or that has no verdict."""
    point = test.values.get(f"{PROPERTY}_point", "")
    plain = Outcome(
        nodeid,
        "error",
        failed=True,
        program=test.values.get(f"{PROPERTY}_program", ""),
        point=point,
        axes=tuple(_split(point)),
        seconds=test.seconds,
        location=test.location,
        line=_line(test),
    )
    raised = test.values.get(f"{PROPERTY}_error", "")[:MAX_TEXT]
    message = raised or test.message
    source = test.values.get(f"{PROPERTY}_error_at", "")[:MAX_TEXT]
    check = "exception" if raised else "error"
    axis = test.values.get(f"{PROPERTY}_error_axis", "")[:MAX_TEXT]
    facts = (("axis", axis),) if axis else ()
    first = FirstDifference(check=check, message=message, source=source, facts=facts)
    return replace(judged or plain, verdict="error", reason=message, first=first)


def _line(test: _Test) -> str:
    return test.values.get(f"{PROPERTY}_line", "")[:MAX_TEXT] if test.failed else ""


def _split(point: str) -> list[tuple[str, str]]:
    """The axes and values in a Point's text; none if a value contains a space."""
    pairs = [word.split("=", 1) for word in point.split(" ")]
    return [(pair[0], pair[1]) for pair in pairs] if all(len(p) == 2 for p in pairs) else []


def _judged(nodeid: str, test: _Test, summary: dict[str, object]) -> Outcome:
    rungs = [rung for rung in _list(summary, "rungs") if isinstance(rung, dict)]
    compared = [(rung, _number(rung, "worst")) for rung in rungs if _number(rung, "tensors")]
    leading = max(compared, key=lambda pair: pair[1] or 0.0) if compared else None
    axes = summary.get("axes")
    spent = summary.get("seconds")
    named = test.values.get(f"{PROPERTY}_point", "")
    point = named or _text(summary, "point")
    return Outcome(
        nodeid,
        str(summary["verdict"]),
        failed=test.failed,
        program=_text(summary, "program") or test.values.get(f"{PROPERTY}_program", ""),
        point=point,
        axes=tuple(
            (excerpt(str(axis)), excerpt(str(value)))
            for axis, value in (axes.items() if isinstance(axes, dict) else _split(point))
        ),
        tensors=tuple(int(_number(rung, "tensors") or 0) for rung in rungs),
        worst=(leading[1] or 0.0) if leading is not None else None,
        worst_name=_worst_name(leading[0]) if leading is not None else "",
        seconds=sum(v for v in (spent if isinstance(spent, dict) else {}).values() if _is(v)),
        reason=_text(summary, "reason"),
        first=_first(summary),
        location=test.location,
        line=_line(test),
        arguments=_text(summary, "arguments"),
    )


def _worst_name(rung: dict[str, object]) -> str:
    name = _text(rung, "worst_name")
    return f"{name} ({_text(rung, 'dtype')})" if name else ""


def _first(summary: dict[str, object]) -> FirstDifference:
    found, place = summary.get("first"), summary.get("look_at")
    if not isinstance(found, dict):
        return FirstDifference(check="inconclusive", message=_text(summary, "reason"))
    texts = {
        name: _text(found, name)
        for name in (
            *("check", "where", "tensor", "module", "message", "pattern", "pattern_name"),
            *("cause", "dtype", "source"),
        )
    }
    located = isinstance(place, dict) and bool(_text(place, "source"))
    if located:
        assert isinstance(place, dict)
        texts |= {"source": _text(place, "source"), "what": _text(place, "what")}
    return FirstDifference(
        **texts,
        error=_number(found, "error"),
        allowed=_number(found, "allowed"),
        located=located,
        facts=tuple(_facts(summary)),
    )


def _facts(summary: dict[str, object]) -> Iterator[tuple[str, str]]:
    for row in _list(summary, "facts")[:MAX_FACTS]:
        if isinstance(row, list) and len(row) == 2 and all(isinstance(t, str) for t in row):
            yield row[0][:MAX_TEXT], row[1][:MAX_TEXT]


def _crash(report: pytest.TestReport | JUnitReport) -> str:
    """The first line of the error message of a failed test.

    A report without an exception, such as that of an unknown fixture, marks its message with E.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    text = getattr(crash, "message", None) or report.longreprtext
    lines = [line for line in str(text)[:10_000].splitlines() if line.strip()]
    if crash is None:
        marked = (line.removeprefix("E ").strip() for line in lines if line.startswith("E "))
        lines = [*marked, *lines]
    return lines[0][:MAX_TEXT] if lines else "the test failed"


def _decoded(value: str) -> dict[str, object]:
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _is(value: object) -> bool:
    return type(value) in (int, float) and not math.isnan(value)  # type: ignore[arg-type]


def _number(data: dict[str, object], key: str) -> float | None:
    value = data.get(key)
    return float(value) if isinstance(value, (int, float)) and _is(value) else None


def _text(data: dict[str, object], key: str) -> str:
    value = data.get(key)
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _list(data: dict[str, object], key: str) -> list[object]:
    value = data.get(key)
    return value if isinstance(value, list) else []


def summaries(reports: Iterable[pytest.TestReport]) -> list[tuple[str, PointSummary]]:
    """The node id and PointSummary of every report with a valid one, each once, in order."""
    return [
        (nodeid, summary)  # type: ignore[misc]
        for nodeid, test in _tests(reports)
        for summary in test.summaries.values()
        if summary.get("verdict") in VERDICTS
    ]
