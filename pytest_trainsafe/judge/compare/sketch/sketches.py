"""Sketches of logical tensors and of updates, each put together once.  Called by the judge."""

from __future__ import annotations

from pytest_trainsafe.align.sketched import Sketched, logical_sketch
from pytest_trainsafe.align.updates import ends
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judge.compare.values import ByteLRU
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.tensors.sketch import SIZE

#: What is kept of all traces of this process, in bytes.
KEPT = 32 * 2**20

_made = ByteLRU[tuple[Sketched | None]](KEPT, lambda _: SIZE + 600)


def sketch_of(trace: Trace, id: TensorId) -> Sketched | None:
    """`logical_sketch`, remembered: a reference is asked at every Point."""
    found = _made.get((trace.serial, id))
    if found is None:
        found = (logical_sketch(trace, id),)
        _made.keep((trace.serial, id), found)
    return found[0]


def update_sketch(trace: Trace, id: TensorId) -> Sketched | None:
    """The sketch of what a step added to a parameter; None also where an end of it has none."""
    both = ends(trace, id)
    if both is None:
        return None
    old, new = (sketch_of(trace, end) for end in both)
    return new - old if new is not None and old is not None and new.shape == old.shape else None
