"""`parallel_points`: a hypothesis strategy of the valid Points of a program."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.fuzz.source import PointSource, point_source

#: The default of a fuzz test's `max_world_size`.
MAX_WORLD_SIZE = 4

#: Whether an axis of the mesh is parallel is drawn from these; examples shrink towards the first.
_PARALLEL = (False, False, False, True, True)


def parallel_points(
    program: object, *, max_world_size: int = MAX_WORLD_SIZE, **axes: object
) -> SearchStrategy[Point]:
    """A strategy of Points at which `program` can be compared with its reference.

    Takes the axes and settings of the marker `trainsafe`.  An axis is given a list of values, one
    value, a range, or `...`.  The latter stands for every size up to `max_world_size` for an axis
    of the mesh, for all values of another built-in axis, and for awkward sizes around the default
    of a parameter.
    Every Point is valid for the program (see `requires`): if drawn values are invalid, as few axes
    as possible are changed.  Examples shrink towards the cheapest values: few ranks, small models.
    Raises SweepError for an invalid axis.  Drawing raises SweepError if no Point is valid.
    """
    return points_of(point_source(program, max_world_size, axes))


def points_of(source: PointSource) -> SearchStrategy[Point]:
    """A strategy of the valid Points of a source's `space`, as it is when an example is drawn."""
    return _points(source)


@st.composite
def _points(draw: st.DrawFn, source: PointSource) -> Point:
    space = source.space
    # Which axes are parallel is drawn before their sizes.  Otherwise Points with several parallel
    # axes, which are few among all combinations of sizes, would be rare.
    parallel = [draw(st.sampled_from(_PARALLEL)) for _ in space.mesh_axes]
    sizes = draw(st.sampled_from(space.meshes(parallel)))
    drawn = dict(zip(space.mesh_axes, sizes, strict=True))
    for name in space.other_axes:
        drawn[name] = draw(st.sampled_from(space.values[name]))
    point = space.repaired(drawn)
    return source.settled(point) if source.settled is not None else point
