"""The tensors of a Trace in the order of dataflow, also where stages of a pipeline made them.

Called by the compare judge, so that what is wrong first is told first.
"""

from __future__ import annotations

import math

from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorId

#: What a step leaves behind, in the order in which it comes about.
_AFTER = ("main_grad", "grad_norm")


def in_dataflow(trace: Trace) -> list[TensorId]:
    """Every id once: step by step and, of a pipeline, micro-batch by micro-batch.

    A micro-batch goes forward through the stages, and backward through them in reverse.  A rank
    by itself has recorded things as they happened.
    """
    # Stable: within a step the order stays that of dataflow, also with several ranks.
    ids = sorted(trace.ids(), key=lambda id: id.step)
    if trace.sizes["pp"] == 1:
        return ids
    stage = {id: trace.holders(id)[0][0].coordinates["pp"] for id in ids}

    def place(id: TensorId) -> tuple[float, ...]:
        if id.microbatch is None:
            return id.step, math.inf, _AFTER.index(id.kind) if id.kind in _AFTER else len(_AFTER)
        if id.kind in ("activation", "loss"):
            return id.step, id.microbatch, 0, stage[id]
        return id.step, id.microbatch, 1 if id.kind == "activation_grad" else 2, -stage[id]

    return sorted(ids, key=place)
