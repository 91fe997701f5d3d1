"""Checks the arguments of `assert_resumable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.core.mesh.sweep_axes import mesh_axis, parallel_axes
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_choices
from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError, SweepError
from pytest_trainsafe.launch.task import Function, Task
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.validity import invalid


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a training is interrupted and resumed.

    The training runs at `point` and is interrupted after `at_step` of its `steps` steps. If `steps`
    is None, the program determines the number of steps. The training is resumed at `point`, and
    also at `resume_point` if that is not None. `save` and `load` are the import paths and files of
    the functions that save and load; "" if the program does so itself. `dtypes` are those in which
    all this is done.
    """

    point: Point
    at_step: int
    steps: int | None = None
    resume_point: Point | None = None
    save: tuple[str, str] = ("", "")
    load: tuple[str, str] = ("", "")
    dtypes: tuple[str, ...] = ()


def resumption_of(
    traces: Traces,
    at_step: object,
    steps: object = None,
    resume_point: object = None,
    save: object = None,
    load: object = None,
    dtypes: object = (),
) -> Resumption:
    """The Resumption that the arguments describe. Raises ArgumentError for invalid ones."""
    if not hasattr(traces, "prefetch"):
        raise ArgumentTypeError(
            f"assert_resumable was given {shown(traces)}; pass the fixture candidate_trace or "
            "reference_trace, whose Run is interrupted and resumed"
        )
    whole = None if steps is None else _number("steps", steps, least=2)
    before = _number("at_step", at_step, least=1)
    if whole is not None and before >= whole:
        raise ArgumentError(
            f"assert_resumable was given at_step={before} and steps={whole}; at_step is the "
            f"number of steps before the checkpoint and must be 1 to {whole - 1}"
        )
    if (save is None) != (load is None):
        given, lacking = ("save", "load") if load is None else ("load", "save")
        raise ArgumentError(
            f"assert_resumable was given {given}= but no {lacking}=; give both functions, or "
            "neither if the program uses ctx.save and ctx.load"
        )
    functions = _function("save", save), _function("load", load)
    case = traces.case
    point = case.point if traces.role == "candidate" else case.reference_point
    point = point.without("dtype")
    other = None if resume_point is None else _point(traces, point, resume_point)
    return Resumption(point, before, whole, other, *functions, _dtypes(traces, dtypes))


def _dtypes(traces: Traces, given: object) -> tuple[str, ...]:
    """The dtypes that are given; the first that the test judges if none is."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ArgumentTypeError(
            f"assert_resumable was given {shown(given)} as dtypes; dtypes must be a list of names, "
            'such as ["float64", "bfloat16"]'
        )
    for each in given:
        if each not in rung_choices():
            raise ArgumentError(
                f"assert_resumable was given the dtype {shown(each)}; dtypes takes some of "
                f"{listing(rung_choices())}{nearest(str(each), rung_choices())}"
            )
    return tuple(dict.fromkeys(given)) or traces.case.rungs[:1]


def _number(name: str, given: object, least: int) -> int:
    if type(given) is not int:
        raise ArgumentTypeError(
            f"assert_resumable was given {shown(given)} as {name}; {name} must be a number of "
            "steps, such as 2"
        )
    if given < least:
        raise ArgumentError(
            f"assert_resumable was given {name}={shown(given)}; {name} must be {least} or more"
        )
    return given


def _function(name: str, given: object) -> tuple[str, str]:
    """The import path and the file of a function; "" for none."""
    if given is None:
        return "", ""
    if not callable(given):
        raise ArgumentTypeError(
            f"assert_resumable was given {shown(given)} as {name}; {name} must be a function "
            f"with the signature {name}(folder, model, optimizer), at the top level of a module "
            "that every rank can import"
        )
    target = Task.of(given, world_size=1).target
    assert isinstance(target, Function)
    return target.name, target.file


def _point(traces: Traces, own: Point, given: object) -> Point:
    """The Point to resume at; ArgumentError unless the program can run there."""
    if not isinstance(given, Mapping | Point):
        raise ArgumentTypeError(
            f"assert_resumable was given {shown(given)} as resume_point; resume_point must be axes "
            'with their values, such as {"dp": 4}'
        )
    case = traces.case
    axes = dict(given.values) if isinstance(given, Point) else dict(given)
    begin = f"assert_resumable was given resume_point={shown(axes)}"
    known = sorted(parallel_axes(own.mesh))
    for name, value in axes.items():
        if name not in known:
            raise ArgumentError(
                f"{begin}, but {shown(name)} is not a parallel axis; the parallel axes are "
                f"{listing(known)}{nearest(str(name), known)}"
            )
        try:
            axis = mesh_axis(own.mesh, name)
            assert axis is not None
            axis.check(value)
        except SweepError as error:
            raise ArgumentError(f"{begin}: {error}") from None
    point = own.replace(**axes)
    role = case.candidate_arguments if traces.role == "candidate" else case.arguments
    arguments, most = case.program.complete(role), case.settings.max_world_size
    why = invalid(point, arguments, case.program.rules, most)
    if why is not None:
        raise ArgumentError(f"{begin}, where the program cannot run: {why}")
    if point == own:
        raise ArgumentError(
            f"{begin}, which is the test's own Point; the training is resumed there in any case, "
            "so give another Point, or leave out resume_point"
        )
    return point
