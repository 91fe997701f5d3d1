"""The plan of a run: the Points that it would judge, without running them.

`--trainsafe-plan` writes it as JSON, and `--trainsafe-from-plan` reads it.  A file that is read may
have been written by anyone, so it is checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from pytest_trainsafe.core.axes import MAX_SECONDS
from pytest_trainsafe.core.point import AxisValue
from pytest_trainsafe.core.untrusted import MALFORMED, BadFileError, read_file
from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.errors import SettingError
from pytest_trainsafe.sweep.plan.balance import weights
from pytest_trainsafe.sweep.product import Cell

FORMAT = "pytest-trainsafe plan 1"

#: The maximum size of a plan in bytes.
MAX_BYTES = 2**26

_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]


class PlannedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One test at one Point.

    `id` is the node id, and `point` has the value of each axis.  `world_size` is the number of
    ranks of the candidate, and `reference_world_size` that of the reference.  `gpus` is the number
    of GPUs needed: 0 on the CPU, null if the device is "auto", which uses GPUs if there are enough.
    `seconds` is how long the test took in an earlier run, null if that is not known.
    """

    id: str
    point: dict[str, AxisValue]
    world_size: _Ranks
    reference_world_size: _Ranks
    device: str
    gpus: _Count | None
    seconds: _Seconds | None


class SkippedPoint(msgspec.Struct, frozen=True):
    """A Point that cannot run, and the reason."""

    id: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The Points of a run.

    `other_tests` counts the tests without the marker.  `estimated_seconds` is the sum of the
    Points' seconds, as if run one after the other; Points without a measurement count as the mean
    of the others.  It is null if nothing has been measured.  `unknown` lists what the plan does not
    know, in words.
    """

    format: str = FORMAT
    points: list[PlannedPoint]
    skipped: list[SkippedPoint]
    other_tests: _Count
    max_world_size: _Count
    estimated_seconds: float | None
    unknown: list[str]


def make_plan(found: Sequence[tuple[str, Cell]], others: int, seconds: Mapping[str, float]) -> Plan:
    """The plan of collected tests, each given by its node id and Cell.

    `others` counts the tests without the marker; `seconds` maps node ids to earlier durations.
    """
    points = [
        _planned(nodeid, cell, seconds.get(nodeid)) for nodeid, cell in found if not cell.invalid
    ]
    measured = {point.id: point.seconds for point in points}
    ranks = {point.id: point.world_size for point in points}
    unmeasured = sum(point.seconds is None for point in points)
    estimated = sum(weights(measured, ranks).values()) / 1000
    unknown = []
    if unmeasured:
        unknown.append(
            f"the seconds of {unmeasured} of {len(points)} points: pytest's cache has no earlier "
            "run of them"
        )
    automatic = sum(point.gpus is None for point in points)
    if automatic:
        unknown.append(
            f"the device of {automatic} of {len(points)} points: it is auto, which uses a GPU for "
            "each rank on a machine that has enough"
        )
    return Plan(
        points=points,
        skipped=[SkippedPoint(nodeid, cell.invalid) for nodeid, cell in found if cell.invalid],
        other_tests=others,
        max_world_size=max(ranks.values(), default=0),
        estimated_seconds=estimated if unmeasured < len(points) else None,
        unknown=unknown,
    )


def _planned(nodeid: str, cell: Cell, seconds: float | None) -> PlannedPoint:
    case = cell.case
    device = case.settings.device
    world_size = case.point.world_size
    reference = case.reference_point.world_size
    gpus = {"cpu": 0, "cuda": max(world_size, reference)}.get(device)
    return PlannedPoint(
        id=nodeid,
        point=dict(case.point),
        world_size=world_size,
        reference_world_size=reference,
        device=device,
        gpus=gpus,
        seconds=seconds,
    )


def encode(plan: Plan) -> str:
    """The plan as JSON, one field a line."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()


def read_plan(source: str, path: Path) -> Plan:
    """The plan in a file.  Raises SettingError, which names the option `source` and the file."""
    where = f"{source} takes a file that --trainsafe-plan json has written; {shown(str(path))}"
    again = "make the plan again with pytest --trainsafe-plan json > plan.json"
    try:
        data = read_file(path, max_bytes=MAX_BYTES)
        found = msgspec.json.decode(data, type=Plan)
    except FileNotFoundError:
        raise SettingError(f"{where} does not exist") from None
    except BadFileError as error:
        raise SettingError(f"{where} cannot be read: {error.strerror}") from None
    except OSError as error:
        raise SettingError(f"{where} cannot be read: {excerpt(str(error.strerror))}") from None
    except MALFORMED as error:
        raise SettingError(f"{where} is not a plan: {excerpt(str(error), 200)}; {again}") from None
    if found.format != FORMAT:
        raise SettingError(f"{where} has the format {shown(found.format)}, not {FORMAT!r}; {again}")
    if len({point.id for point in found.points}) != len(found.points):
        raise SettingError(f"{where} names a point twice; {again}")
    if not all(math.isfinite(point.seconds or 0.0) for point in found.points):
        raise SettingError(f"{where} has seconds that are not a number; {again}")
    return found


def require_same(plan: Plan, path: str, collected: Iterable[str]) -> None:
    """Raises SettingError unless the plan has exactly the collected Points."""
    planned, here = {point.id for point in plan.points}, set(collected)
    for missing, text in (
        (planned - here, "of its points are not collected. A test is gone or renamed"),
        (here - planned, "of the collected points are not in it. A test is new or renamed"),
    ):
        if missing:
            listed = "".join(f"\n  {excerpt(name, 300)}" for name in sorted(missing)[:5])
            more = f"\n  and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise SettingError(
                f"the plan {shown(path)} does not fit this run: {len(missing)} {text}, or this run "
                f"has other paths or options; make the plan again:{listed}{more}"
            )
