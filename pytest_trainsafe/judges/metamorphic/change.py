"""Applies a relation's change to a Run, and raises errors where the program does not allow it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import structs

from pytest_trainsafe.core.mesh.sweep_axes import axes_over
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import ArgumentError, RelationError, SweepError
from pytest_trainsafe.judges.metamorphic.relations.relation import Change, Relation, Setting
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.validity import invalid
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec, arguments_of


def setting_of(traces: Traces, base: Trace) -> Setting:
    """A Run's program, Point, arguments and number of micro-batches, as a Setting.

    `base` is the trace of the Run in any dtype.
    """
    case, spec = traces.case, base.manifest.spec
    arguments = case.program.complete(spec.keywords)
    return Setting(case.program.name, spec.point, arguments, len(microbatches_of(base)))


def microbatches_of(trace: Trace) -> list[int]:
    """The numbers of the micro-batches of the first step, each listed once.

    The micro-batches of rank 0 come first, in the order in which the rank entered them, then those
    of rank 1, and so on.
    """
    first = trace.manifest.spec.first_step
    numbers = dict.fromkeys(
        id.microbatch for rank in trace.ranks for id in rank.tensors if id.step == first
    )
    return [number for number in numbers if number is not None]


def changed(traces: Traces, spec: RunSpec, change: Change, relation: Relation) -> RunSpec:
    """The RunSpec of the changed Run.

    Raises ArgumentError if the program has no axis or argument that the change sets, and
    RelationError if the program's rules do not allow the changed values.
    """
    case = traces.case
    program, own = case.program, spec.point
    axes, keywords = dict(own), dict(spec.keywords)
    built_in = axes_over(own.mesh)
    for name, value in change.values.items():
        parameter = name in program.parameters or (program.open_ended and name not in built_in)
        axis = name in axes or (name in built_in and not parameter)
        if parameter:
            keywords[name] = value
        if axis:
            axes[name] = cast(AxisValue, value)
        if not parameter and not axis:
            names = [*built_in, *program.parameters]
            raise ArgumentError(
                f"the relation {shown(relation.name)} acts through {shown(name)}, which is neither "
                f"an axis nor a parameter of {program.name}{nearest(name, names)}; its parameters: "
                f"{listing(program.parameters) or 'none'}"
            )
    point = Point(tuple(axes.items()), own.mesh)
    _require_valid(traces, point, keywords, relation)
    return structs.replace(
        spec,
        axes=point.values,
        arguments=arguments_of(keywords),
        order=change.order,
        watch_casts=False,
        # A trusted Run compiles nothing and is cached; at another Point the Run is a candidate.
        trusted=spec.trusted and point == own,
    )


def _require_valid(
    traces: Traces, point: Point, keywords: Mapping[str, object], relation: Relation
) -> None:
    case = traces.case
    arguments, most = case.program.complete(keywords), case.settings.max_world_size
    try:
        why = invalid(point, arguments, case.program.rules, most)
    except SweepError as error:
        why = str(error)
    if why is not None:
        raise RelationError(
            f"the relation {shown(relation.name)} does not apply to {case.program.name} at "
            f"{point}, where the program cannot run: {why}"
        )


def unseen(base: Trace, other: Trace, relation: Relation) -> str:
    """Why the change had no effect on the recorded tensors.

    "" if it had an effect, or if the relation need not change what is recorded.
    """
    if not relation.visible:
        return ""
    for one, another in zip(base.ranks, other.ranks, strict=False):
        if _seen(one.tensors) != _seen(another.tensors):
            return ""
    through = (
        "it does not take the numbers of its micro-batches from ctx.microbatches"
        if other.manifest.spec.order
        else "it does not use the arguments that the relation changes"
    )
    return (
        f"the changed Run records the same bits in the same order as the unchanged one, so the "
        f"program ignores the change: {through}"
    )


def _seen(tensors: Mapping[TensorId, object]) -> list[tuple[TensorId, object, object]]:
    return [
        (id, getattr(event, "shape", None), getattr(event, "hash", None))
        for id, event in tensors.items()
    ]
