"""Determines, for each tensor of a reference, whether and how precisely it can be compared.

These tolerances do not depend on the candidate, so they are cached for all candidates of a
reference.  Called by the compare judge.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
import xxhash
from cachetools import LRUCache

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.allowance import Allowance
from pytest_trainsafe.judges.compare.tensors.errors import finite, norm
from pytest_trainsafe.judges.compare.tensors.tensor import allowance_by
from pytest_trainsafe.judges.compare.tensors.values import Values, keep
from pytest_trainsafe.judges.compare.tolerance.gradient_norm import response_of_norm

#: The size limit of the cache for all references of this process, in bytes.
KEPT = 64 * 2**20

#: The sign of a gradient element is uncertain below this multiple of its share of the allowance.
UNDETERMINED = 2.0

#: The sign is also uncertain below this share of the gradient's root mean square: near zero, Adam's
#: epsilon makes the step sensitive to rounding.
NEARLY_ZERO = 1e-3

#: Tensors of at most this many elements are allowed the rounding of their stored dtype.
FEW = 2

#: In low precision, two elements of an update, or this share of them, may have the opposite sign.
FLIPPED = 1e-3


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance of one tensor of a reference, with the properties that the judge needs.

    `finite` says whether all its values are finite, `elements` is their number, `size` the norm,
    and `moves` says whether any value is not zero.  `unmeasured` is true if none of the runs that
    measure rounding has a usable value of the tensor.  If `allowed` is None, only equal values
    pass.  `undetermined` masks the elements of a main gradient that may change their sign by
    rounding, and `zero` the elements that are zero in the reference and in every measuring run;
    each is None if there are no such elements.
    """

    finite: bool
    elements: int
    size: float
    moves: bool
    unmeasured: bool
    allowed: Allowance | None
    undetermined: torch.Tensor | None = None
    zero: torch.Tensor | None = None

    def rounding_of_zero(self, candidate: torch.Tensor) -> torch.Tensor | None:
        """A mask of the candidate's non-zero gradient elements that are zero in the reference.

        Terms that cancel exactly in one order of summation may leave a rounding error in another
        order, and Adam turns this error into a full step.  None if there are no such elements.
        """
        if self.zero is None or candidate.shape != self.zero.shape:
            return None
        rounding = self.zero & (candidate != 0)
        return rounding if bool(rounding.any()) else None


def _bytes(tolerance: Tolerance) -> int:
    slices = sum(each.nbytes for each in tolerance.allowed.slices) if tolerance.allowed else 0
    marked = sum(
        each.nbytes for each in (tolerance.undetermined, tolerance.zero) if each is not None
    )
    return 600 + slices + marked


_cache: LRUCache[tuple[Hashable, ...], Tolerance] = LRUCache(KEPT, _bytes)


class ReferenceTolerances:
    """Computes and caches the tolerances of the tensors of a reference.

    `rung` has the reference's Trace in one dtype, and those of the runs that measure rounding.
    """

    def __init__(self, rung: RungTraces) -> None:
        self.dtype = rung.dtype
        self.reference = Values(rung.reference)
        traces = rung.measures()
        self.measures = [Values(trace) for trace in traces]
        serials = [rung.reference.serial, *(trace.serial for trace in traces)]
        self._key = rung.dtype, *serials

    def tolerance(
        self, id: TensorId, loosened: float, reference: torch.Tensor | None = None
    ) -> Tolerance:
        """The tolerance of a recorded tensor.

        `loosened` multiplies the allowance.  `reference` is the tensor's value if it is already
        loaded.
        """
        key = *self._key, id, loosened
        found = _cache.get(key)
        if found is None:
            if reference is None:
                reference = self.reference.tensor(id)
                assert reference is not None, id
            least = 0.0
            if reference.is_floating_point():
                least = self._subnormal(id) * math.sqrt(reference.numel())
                if reference.numel() <= FEW:
                    # One sample of so few values is unreliable; each may also be rounded when
                    # stored.
                    least = max(least, 0.5 * self.epsilon(id) * norm(reference.numpy()))
            if id.kind == "grad_norm":
                shares = [response_of_norm(self.reference, o, id.step) for o in self.measures]
                least = max([least, *(each * norm(reference.numpy()) for each in shares)])
            found = self._make(
                reference, self.others(id), loosened, least, gradient=id.kind == "main_grad"
            )
            keep(_cache, key, found)
        return found

    def exact_tolerance(self, id: TensorId) -> Tolerance:
        """The tolerance of a tensor that is compared exactly."""
        key = *self._key, id, "exact"
        found = _cache.get(key)
        if found is None:
            reference = self.reference.tensor(id)
            assert reference is not None, id
            found = self._make(reference, [], 1.0, 0.0)
            keep(_cache, key, found)
        return found

    @overload
    def update_tolerance(
        self,
        id: TensorId,
        loosened: float,
        undetermined: Undetermined | None,
        expected: torch.Tensor,
    ) -> Tolerance: ...

    @overload
    def update_tolerance(
        self, id: TensorId, loosened: float, undetermined: Undetermined | None
    ) -> Tolerance | None: ...

    def update_tolerance(
        self,
        id: TensorId,
        loosened: float,
        undetermined: Undetermined | None,
        expected: torch.Tensor | None = None,
    ) -> Tolerance | None:
        """The tolerance of a parameter's update in one step, without undetermined elements.

        `id` is the parameter after the step.  `loosened` multiplies the allowance.  `undetermined`
        masks the elements whose gradient may change its sign by rounding.  `expected` is the
        reference's update without these elements, if it is already computed.  None if the reference
        has no update.
        """
        key = *self._key, id, loosened, undetermined.key if undetermined else ()
        found = _cache.get(key)
        if found is None:
            if expected is None:
                expected = self.reference.update(id)
                if expected is None:
                    return None
                expected = without(expected, undetermined)
            others = [values.update(id) for values in self.measures]
            after = self.reference.tensor(id)
            assert after is not None, id
            # Stored values are rounded, and so is the difference of two of them.
            least = 0.5 * self.epsilon(id) * norm(after.numpy())
            if rung_named(self.dtype).low:
                least = max(least, flipped(norm(expected.numpy()), expected.numel()))
            present = [without(other, undetermined) for other in others if other is not None]
            found = self._make(expected, present, loosened, least)
            keep(_cache, key, found)
        return found

    def others(self, id: TensorId) -> list[torch.Tensor]:
        """The values of a tensor in the runs that measure rounding: with noise, or in float64."""
        found = [values.tensor(id) for values in self.measures if values.trace.holders(id)]
        return [tensor for tensor in found if tensor is not None]

    def _subnormal(self, id: TensorId) -> float:
        """The rounding error of storing a value near zero: half the smallest number of the dtype.

        That number is 6e-8 in float16, and second moments of small gradients are hardly larger.
        """
        info = torch.finfo(self._stored(id))
        return 0.5 * info.smallest_normal * info.eps

    def _stored(self, id: TensorId) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.reference.trace.holders(id)[0][1].dtype)
        return found

    def epsilon(self, id: TensorId) -> float:
        """The machine epsilon of the dtype in which a tensor is stored."""
        return torch.finfo(self._stored(id)).eps

    def _make(
        self,
        reference: torch.Tensor,
        others: list[torch.Tensor],
        loosened: float,
        least: float,
        *,
        gradient: bool = False,
    ) -> Tolerance:
        own = reference.numpy()
        number = own.dtype.kind in "fc"
        is_finite = finite(own)
        usable = [o for o in others if o.shape == reference.shape and finite(o.numpy())]
        allowed = undetermined = zero = None
        if is_finite and number and usable and own.size:
            arrays = [other.numpy() for other in usable]
            allowed = allowance_by(own, arrays, self.dtype, loosened=loosened, least=least)
            if gradient:
                undetermined, zero = _undetermined(reference, usable, allowed.norm)
        return Tolerance(
            finite=is_finite,
            elements=own.size,
            size=norm(own),
            moves=bool(np.any(own)),
            unmeasured=number and bool(self.measures) and not usable,
            allowed=allowed,
            undetermined=undetermined,
            zero=zero,
        )


@dataclass(frozen=True, slots=True)
class Undetermined:
    """A mask of a parameter's elements whose gradients had an uncertain sign in some step.

    `key` identifies the steps, and the elements that were marked because of the candidate's values.
    For the same reference and parameter, equal keys mean equal masks.
    """

    mask: torch.Tensor
    key: tuple[int, ...]

    @classmethod
    def of(
        cls,
        mask: torch.Tensor,
        step: int,
        before: Undetermined | None,
        own: torch.Tensor | None = None,
    ) -> Undetermined:
        """The mask of one step, joined with the mask of the earlier steps, `before`.

        `mask` has the elements that rounding makes uncertain in the reference, in the step with the
        number `step`.  `own` has further elements: those that are zero in the reference, but not in
        the candidate (`Tolerance.rounding_of_zero`).
        """
        key: tuple[int, ...] = (step,)
        if own is not None:
            mask = mask | own
            key = step, xxhash.xxh3_64_intdigest(own.numpy().tobytes())
        if before is None or before.mask.shape != mask.shape:
            return cls(mask, key)
        return cls(mask | before.mask, (*before.key, *key))


def without(values: torch.Tensor, undetermined: Undetermined | None) -> torch.Tensor:
    """The tensor `values` with undetermined elements set to zero.

    `undetermined` masks these elements.  Returns `values` itself if there is no mask, or the
    mask has another shape.
    """
    if undetermined is None or values.shape != undetermined.mask.shape:
        return values
    return values.masked_fill(undetermined.mask, 0)


def _undetermined(
    gradient: torch.Tensor, others: list[torch.Tensor], rounding: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Two masks: the elements whose sign may change by rounding, and those that are always zero.

    `gradient` is a gradient of the reference, `others` has its values in the runs that measure
    rounding, and `rounding` is the norm of the error that rounding explains.
    Adam's step is close to the gradient's sign.  If the gradient is within rounding of zero, the
    update may have either sign in a correct program, in this step and, through the moments, in
    later ones.  An element that is zero in the reference and in all `others` is only in the second
    mask, because it probably stays zero: for example, the elements in a row of an embedding that no
    token selects.  The second mask is None if it has no elements.
    """
    root = gradient.numel() ** 0.5
    limit = max(UNDETERMINED * rounding / root, NEARLY_ZERO * norm(gradient.numpy()) / root)
    marked = _below(gradient, limit)
    certain = marked & (gradient == 0)
    for other in others if bool(certain.any()) else ():
        certain &= other == 0
    return marked ^ certain, certain if bool(certain.any()) else None


def _below(tensor: torch.Tensor, limit: float) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.abs() <= limit
    return (tensor <= limit) & (tensor >= -limit)


def flipped(size: float, elements: int) -> float:
    """The norm of an update's error if a few elements have the opposite sign.

    `size` is the norm of the update and `elements` its number of elements.  The norm of the error
    is divided by the safety factor of bfloat16, because callers pass the result as `least` to a
    function that multiplies `least` by the safety factor.
    """
    elements = max(elements, 1)
    flipped = min(max(2.0, FLIPPED * elements), elements)
    return 2 * size * math.sqrt(flipped / elements) / rung_named("bfloat16").safety
