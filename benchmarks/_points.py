"""The Points at which clean programs are judged, and the smallest Point that triggers a bug."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.reference_models.bugs import Bug
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.sweep.validity import invalid

MAX_RANKS = 4


@dataclass(frozen=True, slots=True)
class Clean:
    """A program without a bug, and the Points at which it is judged."""

    name: str
    program: str
    points: tuple[Point, ...]
    arguments: Mapping[str, object] = field(default_factory=dict)


_TRANSFORMER = (
    Point.of(tp=2),
    Point.of(cp=2),
    Point.of(dp=2),
    Point.of(pp=2),
    Point.of(tp=2, sp=True),
    Point.of(dp=2, tp=2),
    Point.of(pp=2, cp=2),
    Point.of(tp=2, cp=2, sp=True),
)

_ZERO = (Point.of(dp=2, zero=1), Point.of(dp=2, tp=2, zero=1))

_MOE = (
    Point.of(tp=2),
    Point.of(dp=2, ep=2),
    Point.of(cp=2, ep=2),
    Point.of(tp=2, sp=True),
    Point.of(dp=2, tp=2, sp=True, ep=2),
    Point.of(tp=2, cp=2, sp=True),
)

_DEEPSEEK = (
    *_TRANSFORMER,
    Point.of(dp=2, ep=2),
    Point.of(cp=2, ep=2),
    Point.of(dp=2, pp=2, ep=2),
    Point.of(dp=2, tp=2, sp=True, ep=2, zero=1),
    Point.of(tp=2, sp=True, recompute="full"),
)

_DATA_PARALLEL = (Point.of(dp=2), Point.of(dp=4), Point.of(dp=2, zero=1))

CLEAN = (
    Clean("gpt", "gpt", (*_TRANSFORMER, *_ZERO, Point.of(tp=4, recompute="full"))),
    Clean("llama", "llama", _TRANSFORMER),
    Clean("moe", "moe", _MOE),
    Clean("deepseek", "deepseek", _DEEPSEEK, {"clip": 0.01}),
    Clean("deepseek, ring", "deepseek", (Point.of(tp=2, cp=2),), {"cp_method": "ring"}),
    Clean("cnn", "cnn", _DATA_PARALLEL),
    Clean("lstm", "lstm", _DATA_PARALLEL),
    Clean("gpt, fp8", "gpt", (Point.of(tp=2), Point.of(tp=2, cp=2, sp=True)), {"fp8": True}),
)

#: The values that are tried for each axis, beginning with the one that changes nothing.
TRIED: dict[str, tuple[AxisValue, ...]] = {
    "tp": (1, 2),
    "cp": (1, 2),
    "dp": (1, 2),
    "pp": (1, 2),
    "ep": (1, 2),
    "sp": (False, True),
    "zero": (0, 1),
    "recompute": ("none", "full"),
}


def triggering(bug: Bug) -> Point:
    """The valid Point with the fewest ranks, then the fewest axes, at which a bug acts."""
    module = importlib.import_module(f"pytest_trainsafe.reference_models.{bug.program}")
    program = resolve(module.train)
    arguments = program.complete({**bug.arguments, "bug": bug.name})
    tried = []
    for row in itertools.product(*TRIED.values()):
        named = dict(zip(TRIED, row, strict=True))
        point = Point.of({axis: v for axis, v in named.items() if v != TRIED[axis][0]})
        if point.world_size <= MAX_RANKS and bug.triggers(point):
            tried.append(point)
    for point in sorted(tried, key=lambda point: (point.world_size, len(point.values))):
        if invalid(point, arguments, program.rules, MAX_RANKS) is None:
            return point
    raise SystemExit(f"no Point of {MAX_RANKS} ranks triggers {bug.name}")
