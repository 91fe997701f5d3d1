"""Computes the update that a step made to a parameter.  Called by the compare judge.

A parameter changes little in a step, so an error in the update is hidden in the parameter.
"""

from __future__ import annotations

import msgspec
import torch

from pytest_trainsafe.align.logical import parts_of
from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.rungs.floating import arithmetic_of
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace


def update_parts(trace: Trace, id: TensorId) -> list[Part]:
    """The change that the optimizer step makes to the parameter (or master copy) `id`.

    Each part is one rank's value after the step minus its value before the step, in float64
    or complex128.  A rank that did not record both, in the same shape, has no part.
    """
    ids = ends(trace, id)
    if ids is None:
        return []
    before = {part.rank: part for part in parts_of(trace, ids[0])}
    return [
        Part(
            part.rank,
            part.coordinates,
            difference(trace, part.tensor, before[part.rank].tensor),
            part.layout,
            part.layout_source,
        )
        for part in parts_of(trace, ids[1])
        if part.rank in before and before[part.rank].tensor.shape == part.tensor.shape
    ]


def difference(trace: Trace, after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The difference of two recorded values, in float64 or complex128."""
    return arithmetic_of(after.dtype, trace.numbers).subtract(_wide(after), _wide(before))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def ends(trace: Trace, id: TensorId) -> tuple[TensorId, TensorId] | None:
    """The ids of the parameter or master copy before and after a step; None if one is missing."""
    # A float64 reference keeps no master copies, and there are none before the first step.
    after = id if trace.holders(id) else msgspec.structs.replace(id, kind="param")
    before = msgspec.structs.replace(after, step=id.step - 1)
    if not trace.holders(before):
        before = msgspec.structs.replace(before, kind="param")
    return (before, after) if trace.holders(before) and trace.holders(after) else None
