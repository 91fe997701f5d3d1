"""The tensors of a Trace in the order of dataflow, whatever order the program ran things in.

Called by the compare judge, so that the first wrong tensor is the first one in dataflow.  A
schedule may run several forwards before a backward, and gradients that arrive outside of every
micro-batch are written when the step ends: the order of writing is not that of dataflow.
"""

from __future__ import annotations

import math

from pytest_trainsafe.core.tensor_id import CLIP_NORM, TensorId
from pytest_trainsafe.trace.reader import Trace

#: The phases of a micro-batch.  What is not named here belongs to its forward.
_BACKWARD = {"activation_grad": 1, "param_grad": 2}

#: What a step makes after its last micro-batch, in the order in which it comes about.
_AFTER = {"unclipped_grad": 0, "main_grad": 2, "grad_norm": 3}
_LAST = 4


def in_dataflow(trace: Trace) -> list[TensorId]:
    """Every id once: step by step, and in a step micro-batch by micro-batch.

    A micro-batch goes forward, and then backward; through the stages of a pipeline, and through
    them in reverse.  Within a phase the order is that in which a rank recorded things.
    """
    # Stable: of several ranks, those of the first come first.
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
    """The turn of each micro-batch of each step: programs number them as they like."""
    turns: dict[tuple[int, int | None], int] = {}
    for id in ids:
        turns.setdefault((id.step, id.microbatch), len(turns))
    return turns


def _after(id: TensorId, pipeline: bool) -> int:
    """The turn of what belongs to a whole step.

    Of a single stage it is known whether a norm was reported before the gradients were used, or
    after; stages do not tell which of them came first.
    """
    if id.kind == "grad_norm" and id.name == CLIP_NORM:
        return 1
    if id.kind == "grad_norm" and not pipeline:
        return _AFTER["main_grad"]
    return _AFTER.get(id.kind, _LAST)
