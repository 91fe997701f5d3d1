"""Decides when a failure needs more samples of noise, and which failures stay undecided.

A sample is the change of a tensor in one run with noise of the size of rounding.  A single sample
can be small by chance, especially for a tensor of one number or a gradient whose true value is
zero.  So a failure that is close to its allowance is measured again with more samples.  A
difference that exceeds the allowance by orders of magnitude needs no second measurement.  Called by
`judges.compare.ladder.ladder`, which judges a test in one dtype after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.comparison import Comparison


@dataclass(frozen=True, slots=True)
class SamplingRound:
    """A round of measurement: the total number of noise samples, and the failures that need them.

    A failure needs the round if its error, divided by the allowed error, is below `near`, or if
    that is None, below the limit of the rung, `Rung.resampled`.
    """

    samples: int
    near: float | None = None

    def is_for(self, dtype: str, ratio: float) -> bool:
        """Whether a failure in `dtype` with this ratio of error to allowance needs the round."""
        return ratio < (rung_named(dtype).resampled if self.near is None else self.near)


#: A failure below this ratio after the last round is undecided if rounding flipped updates in an
#: earlier step.
LAST_NEAR = 4.0

#: With eight samples, a failure exceeds its allowance 4 times only if the samples diverge from each
#: other.
ROUNDS = (SamplingRound(3), SamplingRound(8), SamplingRound(24, LAST_NEAR))

#: The checks that use the measured rounding.
_MEASURED = frozenset({"norm", "slice", "projection", "decision"})

#: The kinds computed from the gradients of activations, including these.
_GRADIENTS = frozenset({"activation_grad", "param_grad"})
_OF_GRADIENTS = _GRADIENTS | {"unclipped_grad", "main_grad", "grad_norm", "optimizer_state"}


def needs_samples(comparison: Comparison, round: SamplingRound) -> bool:
    """Whether too few samples of noise may be the cause of the comparison's first failure."""
    failing = (f for f in comparison.findings if f.verdict == "fail" and f.where is not None)
    lead = min(failing, key=lambda finding: finding.order, default=None)
    if lead is None:
        return False
    if round.near is None and _is_of_noise(comparison, lead):
        return True
    return round.is_for(comparison.dtype, _ratio(lead))


def _is_of_noise(comparison: Comparison, lead: Finding) -> bool:
    """Whether the failing tensor may be a sum of gradients that are mostly rounding.

    `lead` is the finding on the tensor.  An element of such a gradient may by chance be equal with
    and without noise.  For example, the gradient of a normalisation over a single element is zero;
    its computed value is only a few multiples of the last bit.
    """
    where = lead.where
    if where is None or where.kind not in _OF_GRADIENTS or lead.check not in _MEASURED:
        return False
    return any(id.step == where.step and id.kind in _GRADIENTS for id in comparison.insensitive)


def undecided(comparison: Comparison) -> None:
    """Make small failures inconclusive if rounding flipped elements of an earlier update.

    In a correct program of low precision, an update may have the opposite sign where the sign of
    its gradient is uncertain.  Later differences may exceed every sample of noise.
    """
    if comparison.flipped_in is None:
        return
    comparison.findings[:] = [_undecided(f, comparison.flipped_in) for f in comparison.findings]


def _undecided(finding: Finding, flipped_in: int) -> Finding:
    where = finding.where
    if finding.verdict != "fail" or where is None or where.step <= flipped_in:
        return finding
    ratio = _ratio(finding)
    # The samples have flipped updates too, so these do not explain a tensor that no sample changed.
    if not finding.allowed or not ratio < LAST_NEAR:
        return finding
    message = (
        f"the error is {ratio:.2g} times as large as rounding allows. In the earlier step "
        f"{flipped_in}, rounding changed the sign of some elements of an update, which may explain "
        "the error. Use a smaller learning rate, or test a single step"
    )
    return msgspec.structs.replace(
        finding, verdict="inconclusive", check="diverged", message=message, pattern=None
    )


def _ratio(finding: Finding) -> float:
    """A finding's error divided by its allowed error.

    The ratio is 1 if the allowed error is zero: the noise left the tensor unchanged, which may be
    due to chance.  The ratio is infinite if the error is not finite, or if the check does not use
    measured rounding.
    """
    if finding.check not in _MEASURED or finding.error is None or finding.allowed is None:
        return math.inf
    if not math.isfinite(finding.error):
        return math.inf
    return finding.error / finding.allowed if finding.allowed else 1.0
