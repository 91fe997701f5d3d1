"""Caches the sketches of logical tensors and of updates.  Called by the judge."""

from __future__ import annotations

from cachetools import LRUCache

from pytest_trainsafe.align.sketched import Sketched, logical_sketch
from pytest_trainsafe.align.updates import ends
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.tensors.sketch import SIZE

#: The size limit of the cache for all traces of this process, in bytes.
KEPT = 32 * 2**20

_made: LRUCache[tuple[int, TensorId], tuple[Sketched | None]] = LRUCache(KEPT, lambda _: SIZE + 600)


def sketch_of(trace: Trace, id: TensorId) -> Sketched | None:
    """The sketch of a logical tensor, as `logical_sketch` returns it, from a cache.

    Sketches are cached because all Points with the same reference need them.
    """
    found = _made.get((trace.serial, id))
    if found is None:
        found = (logical_sketch(trace, id),)
        _made[trace.serial, id] = found
    return found[0]


def update_sketch(trace: Trace, id: TensorId) -> Sketched | None:
    """The sketch of a parameter's update in one step: the sketch after minus the sketch before.

    None if one of the two is missing.
    """
    both = ends(trace, id)
    if both is None:
        return None
    old, new = (sketch_of(trace, end) for end in both)
    return new - old if new is not None and old is not None and new.shape == old.shape else None
