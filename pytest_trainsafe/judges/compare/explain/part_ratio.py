"""Expresses each rank's part of a tensor as a multiple of the reference's, up to rounding.

Called by `common_factor` and `common_step`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pytest_trainsafe.align.logical import logical_tensor, parts_of
from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.indices import LayoutError, extract
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.errors import finite, norm
from pytest_trainsafe.judges.compare.tensors.tensor import allowance_by

#: A part's norm must exceed its rounding by this factor to determine a ratio.
SIGNIFICANT = 10.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A rank's part as `factor` times the reference's; `left` is the norm of the remainder.

    `size` is the norm of the reference's part, `allowed` the norm that rounding explains.
    """

    factor: float
    left: float
    size: float
    allowed: float

    @property
    def blur(self) -> float:
        """The largest error of the factor that rounding explains."""
        return self.allowed / self.size if self.size else math.inf

    @property
    def certain(self) -> bool:
        """Whether `factor` can be relied on.

        It can if the part is a multiple of the reference's up to rounding, and if the reference's
        part is much larger than the error that rounding explains.
        """
        return self.size > SIGNIFICANT * self.allowed and self.left <= self.allowed

    def fits(self, factor: float) -> bool:
        """Whether the part is `factor` times the reference's, up to rounding."""
        off = math.hypot(self.left, (self.factor - factor) * self.size)
        return off <= 2 * self.allowed * max(1.0, abs(factor))


Ratios = dict[TensorId, dict[int, Ratio]]


def ratios_of(rung: RungTraces, id: TensorId) -> dict[int, Ratio] | None:
    """By rank, the rank's part of a tensor as a multiple of the reference's part.

    None if the parts cannot be compared with the reference, for example because no rank has one,
    their values were not recorded or their shapes differ.
    """
    found = reference_of(rung, id)
    if found is None or not rung.candidate.holders(id) or not is_whole(rung.candidate, id):
        return None
    reference, allowed = found
    ratios = {}
    for part in parts_of(rung.candidate, id):
        its = part_of_reference(rung, part, reference)
        if its is None:
            return None
        ratios[part.rank] = ratio(part.tensor.to(its.dtype), its, allowed)
    return ratios


def ratio(value: torch.Tensor, basis: torch.Tensor, allowed: float) -> Ratio:
    """The multiple of `basis` that is closest to `value`; both have the same shape.

    `allowed` is the norm of the difference that rounding explains.
    """
    size = norm(basis.numpy())
    factor = float((value * basis).sum()) / size**2 if size else 0.0
    return Ratio(factor, norm((value - factor * basis).numpy()), size, allowed)


def part_of_reference(rung: RungTraces, part: Part, reference: torch.Tensor) -> torch.Tensor | None:
    """A rank's part of the reference's tensor; None if the candidate's part has another shape."""
    try:
        its = extract(reference, part.layout, part.coordinates, rung.candidate.sizes)
    except (LayoutError, IndexError, RuntimeError):
        return None
    return its if its.shape == part.tensor.shape else None


def reference_of(rung: RungTraces, id: TensorId) -> tuple[torch.Tensor, float] | None:
    """The reference's tensor in float64 and the norm of the error that rounding explains.

    None if the tensor was recorded only as a sketch, has inconsistent parts, or is not
    floating-point or not finite.
    """
    if not is_whole(rung.reference, id):
        return None
    merged = logical_tensor(rung.reference, id)
    if merged.tensor is None or merged.findings or not merged.tensor.is_floating_point():
        return None
    reference = merged.tensor.to(torch.float64)
    if not finite(reference.numpy()):
        return None
    return reference, allowed_of(rung, id, reference)


def allowed_of(rung: RungTraces, id: TensorId, reference: torch.Tensor) -> float:
    """The norm of the error that rounding explains in a tensor of the reference."""
    others = [
        tensor.to(reference.dtype).numpy()
        for trace in rung.measures()
        if trace.holders(id)
        and is_whole(trace, id)
        and (tensor := logical_tensor(trace, id).whole) is not None
        and tensor.shape == reference.shape
        and finite(tensor.numpy())
    ]
    if not others:
        return SIGNIFICANT * rung_named(rung.dtype).epsilon * norm(reference.numpy())
    return allowance_by(reference.numpy(), others, rung.dtype, loosened=1.0, least=0.0).norm
