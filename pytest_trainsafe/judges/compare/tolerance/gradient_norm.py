"""Estimates how much rounding changes the total gradient norm.

The total norm is one number, and a single sample of its change may be small by chance.  Each
gradient contributes a sample of its own, and together they give the expected change.  Called by the
tolerances.
"""

from __future__ import annotations

import math

from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.tensors.errors import measure, norm
from pytest_trainsafe.judges.compare.tensors.sketches import sketch_of
from pytest_trainsafe.judges.compare.tensors.values import Values


def response_of_norm(reference: Values, other: Values, step: int) -> float:
    """The expected relative change of the total gradient norm between two runs in the step `step`.

    `reference` and `other` have the values of the two runs.  The change is estimated as the root of
    the sum of the squared contributions of all gradients, because contributions are as likely to
    cancel as to add up.  The result is zero if no gradient of the whole step can be compared.
    """
    power = shares = 0.0
    of_step = [id for id in reference.trace.ids() if id.step == step]
    unclipped = [id for id in of_step if id.kind == "unclipped_grad"]
    # The norm of clipped gradients is the clip limit, so rounding does not show in it.
    for id in unclipped or [id for id in of_step if id.kind == "main_grad"]:
        found = _moved(reference, other, id)
        if found is not None:
            size, along = found
            power += size**2
            shares += (size**2 * along) ** 2
    return math.sqrt(shares) / power if power else 0.0


def _moved(reference: Values, other: Values, id: TensorId) -> tuple[float, float] | None:
    """The norm of the gradient `id` in `reference`, and the gradient's relative change in `other`.

    The change is projected on the gradient in `reference`: it is 0.01 if the gradient in `other` is
    1 % larger.  None if the gradients cannot be compared or are not finite.
    """
    if all(is_whole(values.trace, id) for values in (reference, other)):
        own, moved = reference.tensor(id), other.tensor(id)
        if own is None or moved is None or own.shape != moved.shape:
            return None
        size, along = norm(own.numpy()), measure(moved.numpy(), own.numpy()).along
    else:
        sketch, another = sketch_of(reference.trace, id), sketch_of(other.trace, id)
        if sketch is None or another is None or sketch.shape != another.shape or not sketch.norm:
            return None
        size, along = sketch.norm, (another - sketch).along(sketch)
    return (size, along) if math.isfinite(size) and math.isfinite(along) else None
