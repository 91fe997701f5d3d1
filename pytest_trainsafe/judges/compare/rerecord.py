"""Selects the tensors to record again, with their values, if the comparison of sketches is unclear.

Called by the judge and the ladder.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from pytest_trainsafe.align.updates import ends
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.trace.reader import Trace


def gradients_behind(suspects: Collection[TensorId]) -> set[TensorId]:
    """The main gradients of the suspected parameters, in every step up to the suspected one.

    Where a gradient is close to zero, rounding decides the sign of an element of the update.
    """
    return {
        msgspec.structs.replace(id, kind="main_grad", step=step)
        for id in suspects
        if id.kind in ("param", "master_param")
        for step in range(id.step + 1)
    }


def tensors_to_record(suspects: Collection[TensorId], candidate: Trace) -> tuple[TensorId, ...]:
    """The tensors, sorted, whose values a candidate must record so that suspects can be judged."""
    wanted = {*suspects, *gradients_behind(suspects)}
    for id in suspects:
        if id.kind not in ("param", "master_param") or id.step == INITIAL:
            continue
        master = msgspec.structs.replace(id, kind="master_param")
        wanted |= {master, *(ends(candidate, id) or ()), *(ends(candidate, master) or ())}
    for id in suspects:
        if id.module in candidate.renumbered:  # ranks record their calls under lower numbers
            wanted |= {msgspec.structs.replace(id, call=call) for call in range(id.call)}
    held = set(candidate.ids())
    return tuple(sorted(wanted & held, key=str))
