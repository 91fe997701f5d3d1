"""Sorts the tensors of a Trace in the order of dataflow, whatever the order of execution.

Called by the compare judge, so that the first wrong tensor is the first in dataflow.  Tensors are
not recorded in that order: a schedule may run several forwards before a backward, and gradients
that arrive outside of every micro-batch are written when the step ends.
"""

from __future__ import annotations

import math

from pytest_trainsafe.core.tensor_id import CLIP_NORM, TensorId
from pytest_trainsafe.trace.reader import Trace

#: The phases of a micro-batch's backward.  Kinds that are not listed belong to its forward.
_BACKWARD = {"activation_grad": 1, "param_grad": 2}

#: The order of the kinds that a step records after its last micro-batch.  The loss is that of a
#: whole step, which comes before every gradient of the step, whenever the program reports it.
_AFTER = {"loss": -1, "unclipped_grad": 0, "main_grad": 2, "grad_norm": 3}
_LAST = 4


def in_dataflow(trace: Trace) -> list[TensorId]:
    """Every tensor id once, in dataflow order: by step, and within a step by micro-batch.

    A micro-batch has a forward phase and then backward phases.  The forward follows the stages of
    a pipeline, the backward follows them in reverse.  Within a phase, ids keep the order in
    which a rank recorded them.
    """
    # The sort is stable: ids of the first rank come first.
    ids = sorted(trace.ids(), key=lambda id: id.step)
    pipeline = trace.sizes["pp"] > 1
    stage = {id: trace.holders(id)[0][0].coordinates["pp"] if pipeline else 0 for id in ids}
    turn = _turns(ids)

    def place(id: TensorId) -> tuple[float, ...]:
        if id.microbatch is None:
            return id.step, math.inf, _after(id, pipeline)
        number = id.microbatch if pipeline else turn[id.step, id.microbatch]
        phase = _BACKWARD.get(id.kind, 0)
        return id.step, number, phase, -stage[id] if phase else stage[id]

    return sorted(ids, key=place)


def _turns(ids: list[TensorId]) -> dict[tuple[int, int | None], int]:
    """Numbers the (step, micro-batch) pairs of `ids` from 0, in the order in which they occur."""
    turns: dict[tuple[int, int | None], int] = {}
    for id in ids:
        turns.setdefault((id.step, id.microbatch), len(turns))
    return turns


def _after(id: TensorId, pipeline: bool) -> int:
    """The position of a tensor that belongs to a whole step, among the kinds of such tensors.

    The order is: the loss, unclipped gradients, the norm that is computed for clipping, main
    gradients, other gradient norms, and then all other kinds.  Without a pipeline, the other norms
    have the same position as the main gradients, so that the sort keeps the order in which they
    were recorded.
    """
    if id.kind == "grad_norm" and id.name == CLIP_NORM:
        return 1
    if id.kind == "grad_norm" and not pipeline:
        return _AFTER["main_grad"]
    return _AFTER.get(id.kind, _LAST)
