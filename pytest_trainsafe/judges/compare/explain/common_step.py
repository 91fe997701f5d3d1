"""Finds the wrong optimizer steps that a common factor on all gradients explains.

Some frameworks clip gradients inside the optimizer's step.  The main gradients are recorded before
the step, so a wrong clipping factor shows only in the optimizer's states and in the updates.
Each step adds a fixed multiple of a parameter's gradient to the parameter's first moment.  So if
all gradients have the same wrong factor, the error of each first moment is a multiple of the same
parameter's gradient, and this multiple is equal for all parameters.  Called by
`judges.compare.localize.blame`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import torch

from pytest_trainsafe.align.logical import logical_tensor, parts_of
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.align.updates import update_parts
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.explain.common_factor import LEAST
from pytest_trainsafe.judges.compare.explain.part_ratio import (
    SIGNIFICANT,
    Ratio,
    Ratios,
    allowed_of,
    part_of_reference,
    ratio,
)
from pytest_trainsafe.judges.compare.explain.uneven import FIRST_MOMENTS
from pytest_trainsafe.judges.compare.rung import RungTraces

#: The names that optimizers give to the second moment, which is quadratic in the gradient.
SECOND_MOMENTS = ("exp_avg_sq",)


def follow_a_factor(
    rung: RungTraces,
    gradients: Iterable[TensorId],
    used: Mapping[TensorId, torch.Tensor] | None = None,
) -> set[str]:
    """The paths of the parameters whose steps are wrong as if all gradients had one wrong factor.

    `gradients` are the main gradients of the parameters with wrong steps.  Their recorded values
    may be correct, because the optimizer's step may apply the factor after they are recorded.  The
    result is empty if the steps share no such factor.
    """
    moved: Ratios = {}
    for id in gradients:
        given = (used or {}).get(id)
        found = _moved(rung, id, _of_reference(rung, id) if given is None else given.double())
        if found:
            moved[id] = found
    shares: dict[int, Ratio] = {}
    for rank in {rank for parts in moved.values() for rank in parts}:
        known = [parts[rank] for parts in moved.values() if rank in parts and parts[rank].certain]
        best = max(known, key=lambda one: (_agree(one, known), -one.blur), default=None)
        if best is None or _agree(best, known) < LEAST:
            return set()
        shares[rank] = best
    if not any(abs(share.factor) > SIGNIFICANT * share.blur for share in shares.values()):
        return set()
    return {
        id.path
        for id, parts in moved.items()
        if all(part.fits(shares[rank].factor) for rank, part in parts.items())
    }


def _agree(one: Ratio, known: Iterable[Ratio]) -> int:
    return sum(abs(one.factor - other.factor) <= one.blur + other.blur for other in known)


def _moved(
    rung: RungTraces, gradient: TensorId, given: torch.Tensor | None
) -> dict[int, Ratio] | None:
    """By rank, the error of a parameter's first moment as a multiple of the main gradient.

    `gradient` names the main gradient; `given` is its logical value.  If the optimizer has no first
    moment, the error is that of the parameter's update.  None if the needed values were not
    recorded or cannot be compared, or if `_second_agrees` is false.
    """
    if given is None:
        return None
    for moment in FIRST_MOMENTS:
        state = _state(gradient, moment)
        if rung.candidate.holders(state) and rung.reference.holders(state):
            found = _off(rung, state, given)
            return found if found is None or _second_agrees(rung, gradient, given) else None
    return _update_off(rung, gradient, given)


def _second_agrees(rung: RungTraces, gradient: TensorId, given: torch.Tensor) -> bool:
    """Whether the error of the second moment is a multiple of the squared gradient.

    `gradient` names the main gradient of a parameter, and `given` is its value in the reference.  A
    wrong factor on the gradient causes such an error.  False if the second moment is correct: in
    this case the gradient had no wrong factor, and the error is in how the optimizer computes its
    first moment.  True if the optimizer has no second moment.
    """
    for moment in SECOND_MOMENTS:
        state = _state(gradient, moment)
        if rung.candidate.holders(state) and rung.reference.holders(state):
            found = _off(rung, state, given.square())
            return found is not None and all(
                part.left <= 2 * part.allowed and abs(part.factor) > part.blur
                for part in found.values()
                if part.size > SIGNIFICANT * part.allowed
            )
    return True


def _state(gradient: TensorId, moment: str) -> TensorId:
    name = f"{gradient.name}.{moment}"
    return msgspec.structs.replace(gradient, kind="optimizer_state", name=name)


def _off(rung: RungTraces, id: TensorId, basis: torch.Tensor) -> dict[int, Ratio] | None:
    expected = _of_reference(rung, id)
    if expected is None or expected.shape != basis.shape or not is_whole(rung.candidate, id):
        return None
    allowed = allowed_of(rung, id, expected)
    found = {}
    for part in parts_of(rung.candidate, id):
        its, along = (part_of_reference(rung, part, each) for each in (expected, basis))
        if its is None or along is None:
            return None
        found[part.rank] = ratio(part.tensor.double() - its, along, allowed)
    return found


def _update_off(
    rung: RungTraces, gradient: TensorId, given: torch.Tensor
) -> dict[int, Ratio] | None:
    """By rank, the error of a parameter's update as a multiple of the main gradient.

    `gradient` names the main gradient, and `given` is its value in the reference.  Called for
    optimizers without a first moment.  None if the updates were not recorded or cannot
    be compared.
    """
    for kind in ("master_param", "param"):
        id = msgspec.structs.replace(gradient, kind=kind)
        if not (rung.candidate.holders(id) and rung.reference.holders(id)):
            continue
        theirs, parts = update_parts(rung.reference, id), update_parts(rung.candidate, id)
        if len(theirs) != 1 or not parts:
            return None
        expected, value = theirs[0].tensor, _of_reference(rung, id)
        if value is None or expected.shape != given.shape:
            return None
        # Stored values are rounded, and so is the difference of two of them.
        allowed = allowed_of(rung, id, value)
        found = {}
        for part in parts:
            its, along = (part_of_reference(rung, part, each) for each in (expected, given))
            if its is None or along is None:
                return None
            found[part.rank] = ratio(part.tensor - its, along, allowed)
        return found
    return None


def _of_reference(rung: RungTraces, id: TensorId) -> torch.Tensor | None:
    if not rung.reference.holders(id) or not is_whole(rung.reference, id):
        return None
    merged = logical_tensor(rung.reference, id)
    if merged.tensor is None or merged.findings or not merged.tensor.is_floating_point():
        return None
    return merged.tensor.double()
