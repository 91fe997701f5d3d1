"""The sweep inside pytest's collection: one test per Point, and what is wrong said at its end.

Called by `plugin`.  Everything here is a pure function of the options and the sources, so that
every pytest-xdist worker collects the same tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest

from pytest_trainsafe.config.grammar import OPTION
from pytest_trainsafe.config.requirement import refused_torch
from pytest_trainsafe.config.settings import SETTINGS, Settings
from pytest_trainsafe.core.axes import AXES
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import SweepError, listing, nearest, shown
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.point_summary import attach_summary, plural, reason_counts
from pytest_trainsafe.sweep.product import CELL_FIXTURE, MOST_REASONS, Cell, cells
from pytest_trainsafe.sweep.signature import MARKER


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Collect a marked test once per Point; invalid Points are skipped with their reason.

    CollectError, with the test's node id, for a marker that cannot be meant.
    """
    definition = metafunc.definition
    mark = definition.get_closest_marker(MARKER)
    assert mark is not None
    if sum(own.name == MARKER for own in definition.own_markers) > 1:
        raise _error(definition.nodeid, "a test takes one trainsafe marker, and this has several")
    config, settings = metafunc.config, metafunc.config.stash[SETTINGS]

    def project_rule(point: Point, arguments: Mapping[str, object]) -> str | None:
        reason: str | None = definition.ihook.pytest_trainsafe_valid_point(
            point=point, arguments=dict(arguments), config=config
        )
        return reason

    try:
        declaration = read_marker(mark.args, mark.kwargs)
        made = cells(declaration, settings, project_rule)
    except SweepError as error:
        raise _error(definition.nodeid, str(error)) from error
    if CELL_FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(CELL_FIXTURE)
    metafunc.parametrize(CELL_FIXTURE, [_parameter(cell) for cell in made], indirect=True)


def _parameter(cell: Cell) -> object:
    marks = [pytest.mark.skip(reason=f"{cell.case.point}: {cell.invalid}")] if cell.invalid else []
    return pytest.param(cell, id=cell.id, marks=marks)


def _error(nodeid: str, message: str) -> pytest.Collector.CollectError:
    return pytest.Collector.CollectError(f"{nodeid}: {message}")


def finish(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Note the skipped Points for the summary, and fail the collection for a sweep of nothing.

    Raises UsageError for a torch that is too old.  Said even where modules failed to import,
    since that may be why.
    """
    refused = refused_torch()
    if refused and not hasattr(session.config, "workerinput"):
        raise pytest.UsageError(refused)
    if refused:
        _fail_collection(session, refused)
        return
    found = list(_cells_of(items))
    for item, cell in found:
        if cell.invalid:
            attach_summary(item, {"point": cell.id, "verdict": "skipped", "reason": cell.invalid})
    message = _complaint(session.config.stash[SETTINGS], [cell for _, cell in found])
    # A module that failed to import may have declared the axis: its error comes first.
    if message and not session.testsfailed:
        _fail_collection(session, message)


def _complaint(settings: Settings, found: Sequence[Cell]) -> str | None:
    """What is wrong with the command line, now that every test has been collected.

    The ini file's words hold for the whole suite, of which any part may be collected.
    """
    if settings.sweep_from_ini:
        return None
    declared = list(dict.fromkeys(axis for cell in found for axis, _ in cell.case.point))
    for name, _ in settings.sweep:
        if name not in declared:
            return (
                f"{OPTION}: no collected trainsafe test declares the axis {shown(name)}"
                f"{nearest(name, {*declared, *AXES} - {name})}\n"
                f"  declared axes: {listing(declared) or 'none'}"
            )
    if found and all(cell.invalid for cell in found):
        reasons = list(dict.fromkeys(f"\n  {cell.case.point}: {cell.invalid}" for cell in found))
        first = "".join(reasons[:MOST_REASONS])
        more = len(reasons) - MOST_REASONS
        rest = f"\n  and {more} more" if more > 0 else ""
        return f"the command line leaves no valid point in any collected test:{first}{rest}"
    return None


def _fail_collection(session: pytest.Session, message: str) -> None:
    # A failed report, not an exception: pytest-xdist carries it to the controller, where an
    # exception in a worker would be an internal error.
    report = pytest.CollectReport(nodeid=OPTION, outcome="failed", longrepr=message, result=[])
    session.config.hook.pytest_collectreport(report=report)


def counts(items: Iterable[pytest.Item]) -> str | None:
    """`trainsafe: 5 points, 2 skipped: sp needs tp > 1 (2)`, or None without trainsafe tests."""
    found = [cell for _, cell in _cells_of(items)]
    reasons = Counter(cell.invalid for cell in found if cell.invalid)
    if not found:
        return None
    line = f"trainsafe: {plural(len(found), 'point')}"
    return f"{line}, {reasons.total()} skipped: {reason_counts(reasons)}" if reasons else line


def _cells_of(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, Cell]]:
    for item in items:
        callspec = getattr(item, "callspec", None)
        cell = callspec.params.get(CELL_FIXTURE) if callspec else None
        if isinstance(cell, Cell):
            yield item, cell
