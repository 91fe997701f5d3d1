"""The sweep in pytest's collection: makes one test per Point and reports errors at the end.

Called by `plugin`.  The result depends only on the options and the sources, so that every
pytest-xdist worker collects the same tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pytest

from pytest_trainsafe.config.grammar import OPTION
from pytest_trainsafe.config.requirement import refused_torch
from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.config.values import cover_word
from pytest_trainsafe.core.axes import AXES
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import DeclarationError, TrainsafeError
from pytest_trainsafe.printable import printable
from pytest_trainsafe.sweep.covering.cells import OPTION as COVER
from pytest_trainsafe.sweep.covering.cells import cover_text
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.namesakes import refuse_other_file
from pytest_trainsafe.sweep.point_summary import attach_point, attach_summary, plural, reason_counts
from pytest_trainsafe.sweep.product import CELL_FIXTURE, MAX_REASONS, Cell, cells
from pytest_trainsafe.sweep.signature import FUZZ, MARKER, param_marks

T = TypeVar("T")


def fuzzed_axes(item: pytest.Item) -> tuple[str, ...]:
    """The axes of a test that `trainsafe_fuzz` made; none for other tests."""
    axes: tuple[str, ...] = getattr(getattr(item, "obj", None), FUZZ, None) or ()
    return axes


class MarkerError(TrainsafeError, pytest.Collector.CollectError):
    """A marker is invalid.  The collection of its module fails, and pytest prints only the message.

    Not a pytest.UsageError, which is a final class and would end the run at the first error.
    """


@dataclass(frozen=True, slots=True)
class _Choice:
    """The Cells (items of sweeps) of one test that have the same test id.

    A test and each of its parameter sets may have a marker, and the sweeps of several of these
    markers may contain the same Point, which has the same test id in each.  `cells` maps the Python
    `id()` of each such marker to its Cell.  `default` is the `id()` of the test's own marker, or 0
    if only parameter sets of the test have markers.
    """

    cells: Mapping[int, Cell]
    default: int


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Collects a marked test once per Point; invalid Points are skipped with their reason.

    The marker of a parameter set, `pytest.param(..., marks=pytest.mark.trainsafe(...))`, takes
    precedence over that of the test: `choose` keeps for each set the Points of its own marker.
    Raises MarkerError, with the test's node id, for an invalid marker.
    """
    definition = metafunc.definition
    if sum(own.name == MARKER for own in definition.own_markers) > 1:
        raise _error(
            definition.nodeid,
            "a test takes one trainsafe marker, and this test has several; keep one",
        )
    whole, of_sets = definition.get_closest_marker(MARKER), param_marks(definition)
    if CELL_FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(CELL_FIXTURE)
    if not of_sets:
        assert whole is not None
        parameters = [_parameter(cell) for cell in _cells(metafunc, whole)]
    else:
        by_id: dict[str, dict[int, Cell]] = {}
        for mark in (*of_sets, *([whole] if whole is not None else [])):
            for cell in _cells(metafunc, mark):
                by_id.setdefault(cell.id, {})[id(mark)] = cell
        default = id(whole) if whole is not None else 0
        parameters = [pytest.param(_Choice(each, default), id=name) for name, each in by_id.items()]
    metafunc.parametrize(CELL_FIXTURE, parameters, indirect=True)


def choose(items: list[T]) -> list[T]:
    """Drops the items whose Point is not declared by the item's own marker; returns the others.

    The marker of an item is that of its parameter set, or else the test's.  Raises MarkerError if
    it has several, or none.
    """
    kept = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        choice = callspec.params.get(CELL_FIXTURE) if callspec is not None else None
        if not isinstance(choice, _Choice):
            kept.append(item)
            continue
        assert callspec is not None
        assert isinstance(item, pytest.Item)
        marks = [mark for mark in callspec.marks if mark.name == MARKER]
        if len(marks) > 1:
            raise _error(item.nodeid, "this parameter set has several trainsafe markers; keep one")
        if not marks and not choice.default:
            raise _error(
                item.nodeid,
                "other parameter sets of this test have the trainsafe marker, but this one does "
                "not; add a marker to this set or to the whole test",
            )
        cell = choice.cells.get(id(marks[0]) if marks else choice.default)
        if cell is not None:
            callspec.params[CELL_FIXTURE] = cell
            if cell.invalid:
                item.add_marker(_skip(cell))
            kept.append(item)
    return kept


def _cells(metafunc: pytest.Metafunc, mark: pytest.Mark) -> list[Cell]:
    """The Cells of a marker's sweep."""
    definition, config = metafunc.definition, metafunc.config

    def project_rule(point: Point, arguments: Mapping[str, object]) -> str | None:
        reason: str | None = definition.ihook.pytest_trainsafe_valid_point(
            point=point, arguments=dict(arguments), config=config
        )
        return reason

    try:
        declared = read_marker(mark.args, mark.kwargs)
        if declared.program.script is None:
            refuse_other_file(declared.program.path, str(definition.path))
        return cells(
            declared,
            config.stash[SETTINGS],
            project_rule,
            compared="reference_trace" in metafunc.fixturenames,
        )
    except DeclarationError as error:
        raise _error(definition.nodeid, str(error)) from error


def _parameter(cell: Cell) -> object:
    return pytest.param(cell, id=cell.id, marks=[_skip(cell)] if cell.invalid else [])


def _skip(cell: Cell) -> pytest.MarkDecorator:
    return pytest.mark.skip(reason=f"{cell.case.point}: {cell.invalid}")


def _error(nodeid: str, message: str) -> MarkerError:
    return MarkerError(f"{nodeid}: {message}")


def finish(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Records skipped Points for the summary, and fails the collection if the sweep is empty.

    Raises UsageError if torch is too old, even if modules failed to import, because that may be
    the cause.
    """
    refused = refused_torch()
    if refused and not hasattr(session.config, "workerinput"):
        raise pytest.UsageError(refused)
    if refused:
        fail_collection(session, refused)
        return
    found = list(cells_of(items))
    for item, cell in found:
        attach_point(item, cell.case.program.name, cell.case.point)
        if cell.invalid:
            attach_summary(item, {"point": cell.id, "verdict": "skipped", "reason": cell.invalid})
    message = _complaint(session.config, items, [cell for _, cell in found])
    # A module that failed to import may have declared the axis: its error comes first.
    if message and not session.testsfailed:
        fail_collection(session, message)


def _complaint(
    config: pytest.Config, items: Sequence[pytest.Item], found: Sequence[Cell]
) -> str | None:
    """The error in the command line's sweep, or None; called when all tests are collected.

    A sweep in the ini file is not checked: it applies to the whole suite, and this run may collect
    only a part of it.
    """
    settings = config.stash[SETTINGS]
    if settings.cover and found and config.getoption("trainsafe_cover"):
        message = cover_complaint(settings.cover, found)
        if message:
            return message
    if settings.sweep_from_ini:
        return None
    declared = list(dict.fromkeys(axis for cell in found for axis, _ in cell.case.point))
    declared += [axis for item in items for axis in fuzzed_axes(item) if axis not in declared]
    for name, _ in settings.sweep:
        if name not in declared:
            of_all = ", or choose the dtypes of all tests with --trainsafe-dtype"
            # An axis that exists is no misspelling of one that no test declares either.
            meant = {*declared} if name in AXES else {*declared, *AXES}
            return (
                f"{OPTION}: no collected trainsafe test declares the axis {shown(name)}"
                f"{nearest(name, meant)}\n"
                f"  declared axes: {listing(declared) or 'none'}\n"
                f"  a sweep gives other values to axes of markers: add {name}=[...] to one"
                f"{of_all if name == 'dtype' else ''}"
            )
    if found and all(cell.invalid for cell in found):
        reasons = list(dict.fromkeys(f"\n  {cell.case.point}: {cell.invalid}" for cell in found))
        first = "".join(reasons[:MAX_REASONS])
        more = len(reasons) - MAX_REASONS
        rest = f"\n  and {more} more" if more > 0 else ""
        return f"the command line leaves no valid point in any collected test:{first}{rest}"
    return None


def cover_complaint(strength: int, found: Sequence[Cell]) -> str | None:
    """The error if no collected test has enough axes for a covering design, else None.

    The design needs `strength` axes with several values.  If at least one test has enough axes,
    there is no error: the tests with too few axes then run all Points of their sweeps.
    """
    if any(cell.cover is not None for cell in found) or all(cell.invalid for cell in found):
        return None
    values: dict[tuple[str, str], set[object]] = {}
    for cell in found:
        for axis, value in cell.case.point:
            values.setdefault((cell.case.program.path, axis), set()).add(value)
    several = [axis for (_, axis), each in values.items() if len(each) > 1]
    return (
        f"{COVER} {cover_word(strength)}: no collected trainsafe test has {strength} axes with "
        f"several values (axes with several values: {listing(dict.fromkeys(several)) or 'none'}); "
        f"use a smaller strength, or {COVER} off"
    )


def fail_collection(session: pytest.Session, message: str) -> None:
    """Fails the collection with a message, also in a worker of pytest-xdist."""
    # A failed report, not an exception: pytest-xdist sends reports to the controller, but shows
    # an exception in a worker as an internal error.
    text = printable(message)
    report = pytest.CollectReport(nodeid=OPTION, outcome="failed", longrepr=text, result=[])
    session.config.hook.pytest_collectreport(report=report)


def counts(items: Iterable[pytest.Item]) -> str | None:
    """The line that counts the collected and the skipped Points; None without trainsafe tests.

    For example `trainsafe: 5 points, 2 skipped: sp needs tp > 1 (2)`.
    """
    found = [cell for _, cell in cells_of(items)]
    reasons = Counter(cell.invalid for cell in found if cell.invalid)
    if not found:
        return None
    line = f"trainsafe: {plural(len(found), 'point')}"
    if covered := cover_text(each.cover for each in found if each.cover is not None):
        line += f" ({covered})"
    return f"{line}, {reasons.total()} skipped: {reason_counts(reasons)}" if reasons else line


def cells_of(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, Cell]]:
    """The items of marked tests, each with its Cell."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        cell = callspec.params.get(CELL_FIXTURE) if callspec else None
        if isinstance(cell, Cell):
            yield item, cell
