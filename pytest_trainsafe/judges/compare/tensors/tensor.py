"""Compares one logical tensor of a candidate with its reference.  Called by the compare judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.tensors.allowance import Allowance, allowance
from pytest_trainsafe.judges.compare.tensors.errors import (
    Errors,
    Norms,
    Wide,
    finite,
    measure,
    norm,
)


@dataclass(frozen=True, slots=True)
class TensorJudgement:
    """The judgement of one tensor.

    `check` is the first check that failed: "shape", "non-finite", "norm", "slice", "projection",
    "exact", or "" if all passed.  `error` and `allowed` are the error and the allowance of that
    check, relative to the reference's norm unless that is zero.  `ratio` is the largest ratio of
    error to allowance over all checks.  `rounding` is the absolute norm of the error that rounding
    explains in the whole tensor, and `slices` the norm that it explains at every index of each
    dimension.
    """

    check: str
    message: str
    error: float
    allowed: float
    ratio: float
    rounding: float = 0.0
    slices: tuple[Norms, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.check


def judge_tensor(
    candidate: Wide,
    reference: Wide,
    others: Sequence[Wide],
    dtype: str,
    *,
    loosened: float = 1.0,
    least: float = 0.0,
    whole: bool = False,
) -> TensorJudgement:
    """Judge a candidate's array; `others` has the same tensor in the runs that measure rounding.

    Integers, booleans and exact numbers are compared exactly, and so is everything if there are no
    `others`.
    Other arrays must be float64 or complex128; `reference` and `others` must be finite and have the
    same shape.  `loosened` and `least` are passed to `allowance`.  The error is checked in the
    whole array and in every slice (the values at one index of one dimension).  If `whole` is true,
    slices are not checked.
    """
    allowed = None
    if others and candidate.shape == reference.shape and reference.dtype.kind in "fc":
        allowed = allowance_by(reference, others, dtype, loosened=loosened, least=least)
    return judge_allowed(candidate, reference, allowed, norm(reference), dtype, whole=whole)


def allowance_by(
    reference: Wide, others: Sequence[Wide], dtype: str, *, loosened: float, least: float
) -> Allowance:
    """The largest error that rounding explains in a tensor, measured by `others`.

    See `allowance` for `loosened` and `least`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        along = rung_named(dtype).low  # no other rung's judgement uses it
        responses = [measure(other, reference, along=along) for other in others]
        return allowance(reference, responses, dtype, loosened=loosened, least=least)


def judge_allowed(
    candidate: Wide,
    reference: Wide,
    allowed: Allowance | None,
    size: float,
    dtype: str,
    *,
    whole: bool = False,
) -> TensorJudgement:
    """Judge a candidate's array by an allowance; None allows no difference.

    `size` is the reference's norm.  The rest is as in `judge_tensor`.
    """
    if candidate.shape != reference.shape:
        return _shape(candidate, reference)
    if reference.dtype.kind not in "fc" or rung_named(dtype).exact:
        return _exact(candidate, reference)
    if allowed is None:
        return _bitwise(candidate, reference) if finite(candidate) else _non_finite(candidate)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        errors = measure(candidate, reference, along=rung_named(dtype).low)
        # A finite error implies finite values, because the reference's are finite.
        if not math.isfinite(errors.norm) and not finite(candidate):
            return _non_finite(candidate)
        if whole:
            errors, allowed = replace(errors, slices=()), replace(allowed, slices=())
        return _numeric(errors, allowed, size, dtype)


def judge_equal(allowed: Allowance | None, size: float) -> TensorJudgement:
    """The judgement of a candidate that equals its finite reference bit by bit."""
    if allowed is None:
        return TensorJudgement("", "", 0.0, 0.0, 0.0)
    bound = allowed.norm / (size or 1.0)
    return TensorJudgement("", "", 0.0, bound, 0.0, allowed.norm, allowed.slices)


def _numeric(errors: Errors, allowed: Allowance, size: float, dtype: str) -> TensorJudgement:
    unit = size or 1.0
    ratio = _over(errors.norm, allowed.norm)
    check, message = ("norm", "") if ratio > 1 else ("", "")
    error, bound = errors.norm / unit, allowed.norm / unit
    for dim, (wrong, limit) in enumerate(zip(errors.slices, allowed.slices, strict=True)):
        over = _over_each(wrong, limit)
        worst = int(over.argmax()) if over.size else 0
        if over.size and (top := float(over[worst])) > ratio:
            ratio = top
            if ratio > 1 and not check:
                check = "slice"
                error, bound = float(wrong[worst]) / unit, float(limit[worst]) / unit
                message = _slice_message(dim, worst, int((over > 1).sum()), over.size)
    if rung_named(dtype).low:
        scale = _over(abs(errors.along), allowed.along)
        if scale > ratio:
            ratio = scale
            if scale > 1 and not check:
                check = "projection"
                error, bound = abs(errors.along), allowed.along
                message = f"on average, the values are {1 + errors.along:.4g} times the reference's"
    return TensorJudgement(check, message, error, bound, ratio, allowed.norm, allowed.slices)


def _slice_message(dim: int, worst: int, wrong: int, length: int) -> str:
    only = f"only index {worst} of the {length} in dimension {dim} is wrong"
    many = f"{wrong} of the {length} indices in dimension {dim} are wrong, the worst is {worst}"
    return only if wrong == 1 else many


def _over(error: float, allowed: float) -> float:
    """The error divided by its allowance; 0 for no error, infinite if the allowance is zero."""
    if error == 0:
        return 0.0
    over = error / allowed if allowed else math.inf
    return math.inf if math.isnan(over) else over


def _over_each(errors: Norms, allowed: Norms) -> Norms:
    over = np.divide(errors, allowed, out=np.zeros(errors.shape), where=errors != 0)
    # Squares overflow above 1e154; an error that cannot be measured fails.
    over[np.isnan(over)] = np.inf
    return over


def _shape(candidate: Wide, reference: Wide) -> TensorJudgement:
    message = (
        f"has shape {list(candidate.shape)}, but its reference has shape {list(reference.shape)}"
    )
    return TensorJudgement("shape", message, float("inf"), 0.0, float("inf"))


def _exact(candidate: Wide, reference: Wide) -> TensorJudgement:
    wrong = int((candidate != reference).sum())
    if not wrong:
        return TensorJudgement("", "", 0.0, 0.0, 0.0)
    message = f"{wrong} of {reference.size} values differ"
    return TensorJudgement("exact", message, wrong / reference.size, 0.0, float("inf"))


def _non_finite(candidate: Wide) -> TensorJudgement:
    wrong = ~np.isfinite(candidate)
    first = [int(i) for i in np.argwhere(wrong)[0]]
    message = f"{int(wrong.sum())} of {candidate.size} values are not finite, first at {first}"
    return TensorJudgement("non-finite", message, float("inf"), 0.0, float("inf"))


def _bitwise(candidate: Wide, reference: Wide) -> TensorJudgement:
    """The judgement where no rounding was measured: only equal values pass."""
    if np.array_equal(candidate, reference):
        return TensorJudgement("", "", 0.0, 0.0, 0.0)
    error = norm(candidate - reference) / (norm(reference) or 1.0)
    message = "the values differ, and no rounding was measured that would allow a difference"
    return TensorJudgement("exact", message, error, 0.0, float("inf"))
