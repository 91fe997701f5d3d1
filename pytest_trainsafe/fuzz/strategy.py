"""`parallel_points`: a hypothesis strategy of the valid Points of a program."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.fuzz.source import PointSource, point_source

#: The largest world size of a fuzz test that names none.
MAX_WORLD_SIZE = 4

#: How often an axis of the mesh is parallel; examples shrink towards the first.
_PARALLEL = (False, False, False, True, True)


def parallel_points(
    program: object, *, max_world_size: int = MAX_WORLD_SIZE, **axes: object
) -> SearchStrategy[Point]:
    """A strategy of Points at which `program` can be compared with its reference.

    Takes the axes and settings of the marker `trainsafe`.  An axis has a list of values, one
    value, a range, or `...`: every size up to `max_world_size` for an axis of the mesh, all values
    of another built-in axis, and awkward sizes around the default of a parameter.
    Every drawn Point obeys the rules of the program: drawn values that do not are changed in as
    few axes as possible.  Values are tried from the cheapest on, so that examples shrink to few
    ranks and small models.
    Raises SweepError for an invalid axis; drawing raises it if the rules exclude every Point.
    """
    return points_of(point_source(program, max_world_size, axes))


def points_of(source: PointSource) -> SearchStrategy[Point]:
    """The strategy of the valid Points of a source, in whatever space it has when drawn from."""
    return _points(source)


@st.composite
def _points(draw: st.DrawFn, source: PointSource) -> Point:
    space = source.space
    # Which axes are parallel comes before their sizes, or combinations of several axes, which are
    # few among all sizes, would be rare.
    parallel = [draw(st.sampled_from(_PARALLEL)) for _ in space.mesh_axes]
    sizes = draw(st.sampled_from(space.meshes(parallel)))
    drawn = dict(zip(space.mesh_axes, sizes, strict=True))
    for name in space.other_axes:
        drawn[name] = draw(st.sampled_from(space.values[name]))
    point = space.repaired(drawn)
    return source.settled(point) if source.settled is not None else point
