"""Finds micro-batch gradients of parameters that are cut over ranks with other micro-batches.

If dp ranks each hold some rows of a parameter, as of an embedding, every rank's rows get the
gradients of all ranks' micro-batches.  So what one rank records in its own micro-batch is the
gradient of no micro-batch, and the other rows are recorded in others.
"""

from __future__ import annotations

from pytest_trainsafe.core.layout import Partial, axes_of
from pytest_trainsafe.core.mesh import elsewhere
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import RankTrace, Trace


class Dealt:
    """The gradients in `trace` of micro-batches that other owners of the parameter do not train."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._trained: dict[int, set[tuple[int, int | None]]] = {}

    def __contains__(self, id: TensorId) -> bool:
        holders = self._trace.holders(id) if id.kind == "param_grad" else []
        if not holders:
            return False
        mesh = self._trace.sizes.mesh
        cut = mesh.expand(
            axis
            for placement in holders[0][1].layout
            if not isinstance(placement, Partial)
            for axis in axes_of(placement)
        )
        axes = [axis for axis in cut if mesh.role(axis) == "dp" and self._trace.sizes[axis] > 1]
        if not axes:
            return False
        held = {rank.rank for rank, _ in holders}
        there = {elsewhere(rank.coordinates, axes) for rank, _ in holders}
        others = [rank for rank in self._trace.ranks if rank.rank not in held]
        return any(
            elsewhere(rank.coordinates, axes) in there and self._trains_others(rank, id)
            for rank in others
        )

    def _trains_others(self, rank: RankTrace, id: TensorId) -> bool:
        """Whether a rank trains micro-batches in the step of `id`, but not that of `id`."""
        if rank.rank not in self._trained:
            self._trained[rank.rank] = {(each.step, each.microbatch) for each in rank.tensors}
        trained = self._trained[rank.rank]
        if (id.step, id.microbatch) in trained:
            return False
        return any(step == id.step and number is not None for step, number in trained)
