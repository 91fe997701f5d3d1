"""Finds the axis without which a fault does not occur, by trying Points without one axis.

Called by `judges.compare.localize.search`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from pytest_trainsafe.core.mesh.sweep_axes import parallel_axes
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.validity import invalid

#: What a Point without an axis shows if other tensors are wrong there than those of the fault.
OTHERWISE: Final = "otherwise"

#: Whether a fault occurs at a Point; None if that is unknown.
Shown = bool | Literal["otherwise"] | None

#: Axes that require another axis.
NEEDS = {"sp": "tp", "vpp": "pp"}


def parallel(point: Point, names: frozenset[str]) -> list[str]:
    """The axes in `names` that have an effect at a Point.

    Axes that require another axis, such as sp, which requires tp, come first.
    """
    found = [axis for axis, value in point if axis in names and value != trivial(axis, value)]
    return sorted(found, key=lambda axis: axis not in NEEDS)


def trivial(axis: str, value: AxisValue) -> AxisValue:
    """The value, of the same type as `value`, at which an axis has no effect."""
    if axis == "zero":
        return 0
    if isinstance(value, bool):
        return False
    return 1 if isinstance(value, int) else "none"


def without(case: Case, axis: str) -> Point | None:
    """The case's Point without `axis` and the axes that require it; None if that is not valid."""
    role = case.point.mesh.role(axis)
    alone = case.point.mesh.members(role) == (axis,)
    dependent = [name for name, other in NEEDS.items() if other == role and alone]
    point = case.point.without("dtype", axis, *dependent)
    arguments = case.program.complete(case.candidate_arguments)
    reason = invalid(point, arguments, case.program.rules, case.settings.max_world_size)
    return point if reason is None else None


def arguments_at(case: Case, point: Point) -> dict[str, object]:
    """The candidate's arguments at another Point: an axis may be a parameter of the program, too.

    The argument of an axis that the Point lacks has the value at which the axis has no effect.
    """
    arguments = dict(case.candidate_arguments)
    there = dict(point)
    for axis, value in case.point:
        if axis in arguments and axis != "dtype" and arguments[axis] == value:
            arguments[axis] = there.get(axis, trivial(axis, value))
    return arguments


def only_axis(case: Case) -> str:
    """A sentence on the only axis in which a candidate differs from its reference, or ""."""
    axes = parallel(case.point, parallel_axes(case.point.mesh))
    if len(axes) != 1 or case.arguments != case.candidate_arguments:
        return ""
    return f"{axes[0]}, the only one of this Point"


@dataclass(frozen=True, slots=True)
class Tried:
    """What Points without one axis show about a fault.

    `axis` is the axis without which the fault does not occur, "" if there is no such axis, or more
    than one; `text` is a sentence on what was tried.  Without each of the axes in `stays`, the
    fault occurs too.  `needs` are the axes that it needs, if it needs more than one.
    """

    axis: str = ""
    text: str = ""
    stays: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def necessary_axis(case: Case, axes: list[str], persists: Callable[[Point], Shown]) -> Tried:
    """The axis without which the fault does not occur.

    `persists(point)` returns whether the fault occurs at a Point.  An axis without which something
    else is wrong is not said to be necessary: it may be the same fault.
    """
    values: Mapping[str, AxisValue] = dict(case.point)
    gone: list[str] = []
    stays: list[str] = []
    otherwise: list[str] = []
    for axis in axes:
        role = case.point.mesh.role(axis)
        if any(NEEDS.get(name) == role for name in gone):
            continue  # without this axis, the other one would be removed too
        point = without(case, axis)
        there = None if point is None else persists(point)
        if there == OTHERWISE:
            otherwise.append(axis)
        elif there is not None:
            (stays if there else gone).append(axis)

    def at(axis: str) -> str:
        """The axis with the value at which it has no effect, as in `tp=1`."""
        return f"{axis}={trivial(axis, values[axis])}"

    if not gone and not otherwise and (smaller := _at_smaller_point(case, axes, stays, persists)):
        found, removed = smaller
        also = f"; at {at(removed)} it is still there"
        return replace(found, text=found.text + also, stays=(*stays, *found.stays))
    others = " and ".join(f"at {at(axis)}" for axis in otherwise)
    besides = f"{others} something is wrong as well, but not the same" if otherwise else ""
    if not gone:
        tried = " and ".join(f"at {at(axis)}" for axis in stays)
        text = f"the fault also occurs {tried}" if tried else ""
        text = "; ".join(each for each in (text, besides) if each)
        return Tried("", f"no single axis: {text}" if text else "", tuple(stays))
    if len(gone) == 1:
        also = " and ".join(f"at {at(axis)}" for axis in stays)
        text = f"{gone[0]}: at {at(gone[0])} the fault is gone"
        text = f"{text}, {also} it is still there" if also else text
        text = f"{text}; {besides}" if besides else text
        return Tried(gone[0], text + _splits(gone, case.point), tuple(stays))
    every = "both" if len(gone) == 2 else "all"
    lacking = " or ".join(f"without {axis}" for axis in gone)
    text = f"{' and '.join(gone)} together: the fault needs {every}; {lacking} it is gone"
    return Tried("", text + _splits(gone, case.point), tuple(stays), tuple(gone))


def _at_smaller_point(
    case: Case, axes: list[str], stays: list[str], persists: Callable[[Point], Shown]
) -> tuple[Tried, str] | None:
    """What is found where an axis is removed without which the fault stays, and that axis.

    An axis that another one needs, as ep needs dp, can be removed only after it.  None if no axis
    is found so.
    """
    point = without(case, stays[0]) if stays else None
    # Without an axis, the Point also lacks those that need it.
    left = [axis for axis in axes if axis not in stays and point and axis in dict(point)]
    if point is None or not left:
        return None
    found = necessary_axis(replace(case, point=point), left, persists)
    return (found, stays[0]) if found.axis or found.needs else None


def _splits(axes: Iterable[str], point: Point) -> str:
    """A clause on the axis whose ranks another one uses: a pattern over tp may be due to sp."""
    found = {axis: NEEDS[axis] for axis in axes if axis in NEEDS}
    role = point.mesh.role
    ranks = {own: " and ".join(a for a, _ in point if role(a) == of) for own, of in found.items()}
    return "".join(f"; {own} divides over the ranks of {of}" for own, of in ranks.items() if of)
