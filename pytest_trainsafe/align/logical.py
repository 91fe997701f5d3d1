"""Logical tensors of a Trace: the way from the recorded parts to what a single device holds.

Called by the judges; joins the trace reader and merge.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.align.merge import Merged, Part, merge
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorId


def parts_of(trace: Trace, id: TensorId) -> list[Part]:
    """The parts of `id` that the ranks recorded with their values, in rank order."""
    return [
        Part(
            rank.rank,
            rank.coordinates,
            trace.load(rank.rank, event),
            event.layout,
            event.layout_source,
        )
        for rank, event in trace.holders(id)
    ]


def logical_tensor(trace: Trace, id: TensorId, shape: Sequence[int] | None = None) -> Merged:
    """The logical tensor of `id`; `shape` is the reference's, where there is one.

    What belongs to one micro-batch is held by the dp coordinate that computed it, and the rest
    by all of them; a pipeline stage holds what is its own.
    """
    free = ("pp", "dp") if id.microbatch is not None else ("pp",)
    return merge(parts_of(trace, id), trace.sizes, shape=shape, free_axes=free, where=id)
