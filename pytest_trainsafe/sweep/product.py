"""Makes the Cases of a Declaration: the product of its axes, checked by the validity rules."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from pytest_trainsafe.config.grammar import SweepWords
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.axes import AXES, MAX_POINTS, Axis, check_values
from pytest_trainsafe.core.mesh import DEFAULT, Mesh
from pytest_trainsafe.core.mesh.sweep_axes import PROBLEM_AXES
from pytest_trainsafe.core.point import NO_RECOMPUTE, TRIVIAL, AxisValue, Point
from pytest_trainsafe.core.usage import excerpt
from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.covering.cells import Cover, Use, choose_points
from pytest_trainsafe.sweep.marker import Declaration
from pytest_trainsafe.sweep.validity import Rule, invalid

#: The internal fixture whose parameter is a test's Cell.
CELL_FIXTURE = "_trainsafe_cell"

#: The number of invalid Points that an error lists with their reasons.
MAX_REASONS = 20

AxisValues = tuple[tuple[Axis, tuple[AxisValue, ...]], ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One item of a sweep: a Case, its id, and why it cannot run (None if it can).

    `cover` describes the covering design that chose it, None for a whole sweep.
    """

    case: Case
    id: str
    invalid: str | None
    cover: Cover | None = None


def override(axes: AxisValues, sweep: SweepWords) -> AxisValues:
    """The axes with their values replaced by those in `sweep`; undeclared names are ignored."""
    words = dict(sweep)
    return tuple(
        (axis, check_values(axis, [axis.parse(word) for word in words[axis.name]]))
        if axis.name in words
        else (axis, values)
        for axis, values in axes
    )


def points(axes: AxisValues, mesh: Mesh = DEFAULT) -> list[Point]:
    """The product of the axes in declared order, the last varying fastest, as Points of `mesh`.

    Raises SweepError if there are more than MAX_POINTS, before any Point is made.
    """
    count = math.prod(len(values) for _, values in axes)
    if count > MAX_POINTS:
        shown = " * ".join(
            f"{axis.name}: {len(values)}" for axis, values in axes if len(values) > 1
        )
        raise SweepError(
            f"the axes make {count} points ({excerpt(shown)}), and a test has at most "
            f"{MAX_POINTS}; give fewer values, or declare several tests"
        )
    names = [axis.name for axis, _ in axes]
    return [
        Point(tuple(zip(names, row, strict=True)), mesh)
        for row in itertools.product(*(values for _, values in axes))
    ]


def cells(
    declaration: Declaration, settings: Settings, project_rule: Rule, *, compared: bool = True
) -> list[Cell]:
    """The Cells of a test, in order.  `project_rule` is applied after the program's own rules.

    Raises SweepError if none of the Points that the marker declares is valid.  A sweep that the
    command line or the ini file narrows may leave a test without a valid Point.
    With `settings.cover`, the Cells are those of a covering design, all of them valid.  If the test
    compares the candidate with its reference (`compared`), Points at which the two are the same Run
    test nothing, so the design does without them.
    """
    axes = override(declaration.axes, settings.sweep)
    settings = with_marker(settings, declaration)
    rules, mesh = (*declaration.program.rules, project_rule), declaration.program.traits.mesh

    def use(point: Point) -> Use:
        cell = cell_of(declaration, point, settings, rules)
        if cell.invalid is not None:
            return "invalid"
        return "idle" if compared and is_reference(declaration, cell.case) else "valid"

    chosen = settings.cover and choose_points(axes, mesh, settings.cover, use)
    if chosen:
        kept = [cell_of(declaration, point, settings, rules) for point in chosen[0]]
        return _distinct([replace(cell, cover=chosen[1]) for cell in kept])
    made = [cell_of(declaration, point, settings, rules) for point in points(axes, mesh)]
    narrowed = axes != declaration.axes or settings.max_world_size < Settings().max_world_size
    if not narrowed and all(cell.invalid for cell in made):
        first = [f"  {cell.case.point}: {cell.invalid}" for cell in made[:MAX_REASONS]]
        more = [f"  and {len(made) - len(first)} more"] if len(made) > len(first) else []
        raise SweepError("\n".join(["no point of this sweep is valid:", *first, *more]))
    return _distinct(made)


def cell_of(
    declaration: Declaration, point: Point, settings: Settings, rules: tuple[Rule, ...]
) -> Cell:
    """The Cell of one Point; `settings` include the marker's, and `rules` the program's."""
    program = declaration.program
    # A program trains in the dtype of the rung, `ctx.dtype`: the axis dtype is not an argument.
    named = {n: v for n, v in point if n in program.parameters and n != "dtype"}
    how = AXES.keys() | point.mesh.names
    problem = {n: v for n, v in named.items() if n not in how or n in PROBLEM_AXES}
    shared = {n: v for n, v in problem.items() if n not in program.traits.how}
    own = declaration.reference_args
    arguments: dict[str, object] = {**declaration.args, **shared, **own}
    alone = {**program.traits.candidate, **declaration.candidate_args}
    candidate: dict[str, object] = {**declaration.args, **named, **alone}
    stages = declaration.reference_pp
    case = Case(
        point,
        program,
        settings,
        arguments,
        candidate,
        reference_pp=stages,
        expect=declaration.expect,
        healthy=declaration.healthy,
    )
    most = settings.max_world_size
    reason = invalid(point, program.complete(candidate), rules, most)
    if reason is None and stages > 1:
        trusted = case.reference_point
        why = invalid(trusted, program.complete(arguments), rules, most)
        reason = f"its reference at {trusted} is invalid: {why}" if why else None
    return Cell(case, point.id, reason)


def is_reference(declaration: Declaration, case: Case) -> bool:
    """Whether the candidate of a Case is the same Run as its reference, so it cannot differ."""
    alone = declaration.candidate_args or case.program.traits.candidate
    same = dict(case.arguments) == dict(case.candidate_arguments)
    return not alone and same and _trivial(case.point) == _trivial(case.reference_point)


def _trivial(point: Point) -> Point:
    """`point` without the axis dtype, and without every axis that has its trivial value.

    The trivial value of an axis is its value at Points that do not name the axis: 1 for sizes, 0
    for `zero`, and False for `sp`, `recompute` and `compile`.  `recompute` is also left out with
    other values that recompute nothing.
    """
    ones = {*point.mesh.names, "vpp", "ep"}
    off = [name for name, value in point if value == (1 if name in ones else TRIVIAL.get(name))]
    if point.get("recompute", False) in NO_RECOMPUTE:
        off.append("recompute")
    return point.without("dtype", *off)


def with_marker(settings: Settings, declaration: Declaration) -> Settings:
    """The settings of the pytest run, overridden by those of the marker.

    `accept` and `packs` are not overridden: the marker's values are added to those of the run.
    """
    given = dict(declaration.settings)
    for name, before in (("accept", settings.accept), ("packs", settings.packs)):
        more = given.get(name, ())
        assert isinstance(more, tuple)
        given[name] = tuple(dict.fromkeys((*before, *more)))
    own = declaration.settings.get("packs", ())
    assert isinstance(own, tuple)
    given["suite_packs"] = tuple(name for name in settings.packs if name not in own)
    return settings._replace(**given)  # type: ignore[arg-type]


def _distinct(made: list[Cell]) -> list[Cell]:
    """Makes ids unique: they contain only letters and digits, so `a_b` and `ab` may collide."""
    seen: dict[str, int] = {}
    for cell in made:
        seen[cell.id] = seen.get(cell.id, 0) + 1
    if len(seen) == len(made):
        return made
    return [
        replace(cell, id=f"{cell.id}-{number}") if seen[cell.id] > 1 else cell
        for number, cell in enumerate(made)
    ]
