"""The table of a test's Points: axis values, verdict, and largest ratio of error to allowance.

The table is plain data; the terminal summary and the job summary of GitHub Actions format it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trainsafe.report.run.outcome import Outcome

_SEVERITY = {"fail": 0, "error": 1, "inconclusive": 2}


@dataclass(frozen=True, slots=True)
class Table:
    """The Points of one test: a row each, below `columns`.

    If the axes do not tell the rows apart, the first column has the tests' own parameters.
    `constant` has the axes that are the same in all rows: "dtype=bfloat16".
    """

    test: str
    constant: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    outcomes: tuple[Outcome, ...]


#: The columns after the axes.
RESULTS = ("verdict", "error/allowed", "tensors", "seconds")


def tables(found: Sequence[Outcome], most: int = 20) -> list[Table]:
    """A Table for each test; those with failures and the largest errors come first.

    The Points of a test are in the order of `found`, which is that of its sweep.  But if there are
    more than `most` Points, of which a report may leave out the last, failures and the largest
    errors come first.
    """
    by_test: dict[str, list[Outcome]] = {}
    for outcome in found:
        if outcome.verdict != "skipped":
            by_test.setdefault(outcome.test, []).append(outcome)
    if sum(map(len, by_test.values())) > most:
        by_test = {test: sorted(each, key=_rank) for test, each in by_test.items()}
    worst = {test: min(map(_rank, each)) for test, each in by_test.items()}
    return [_table(test, by_test[test]) for test in sorted(by_test, key=worst.__getitem__)]


def _rank(outcome: Outcome) -> tuple[int, float]:
    return _SEVERITY.get(outcome.verdict, 3), -(outcome.worst or 0.0)


def _table(test: str, each: Sequence[Outcome]) -> Table:
    names = list(dict.fromkeys(axis for outcome in each for axis, _ in outcome.axes))
    values = {name: [dict(o.axes).get(name, "-") for o in each] for name in names}
    same = [name for name in names if len(set(values[name])) == 1] if len(each) > 1 else []
    varying = [name for name in names if name not in same]
    ids = [outcome.nodeid.partition("[")[2].removesuffix("]") or "-" for outcome in each]
    told = {tuple(values[name][number] for name in varying) for number in range(len(each))}
    if len(told) < len(set(ids)):  # parameters beside the axes tell the rows apart
        varying = ["test" if names else "point", *varying]
        values[varying[0]] = ids
    rows = tuple(
        (*(values[name][number] for name in varying), *results(outcome))
        for number, outcome in enumerate(each)
    )
    constant = " ".join(f"{name}={values[name][0]}" for name in same)
    return Table(test, constant, (*varying, *RESULTS), rows, tuple(each))


def results(outcome: Outcome) -> tuple[str, str, str, str]:
    """The cells of one row in the columns RESULTS."""
    return (
        outcome.verdict,
        _ratio(outcome),
        "/".join(map(str, outcome.tensors)) or "-",
        f"{outcome.seconds:.1f}",
    )


def ratio(value: float) -> str:
    """A number as text with two significant digits: `0.25`, `2e+13`, `inf`."""
    return f"{value:.2g}" if math.isfinite(value) else "inf"


def _ratio(outcome: Outcome) -> str:
    """The largest error over its allowance; "-" for a failure that is no error in size."""
    fails_otherwise = outcome.verdict == "fail" and (outcome.worst or 0.0) <= 1
    return "-" if outcome.worst is None or fails_otherwise else ratio(outcome.worst)
