"""Decides when a failure needs more samples of noise, and what they leave undecided.

One sample of the response to noise can be small by chance, above all that of a single number or
of a gradient whose true value is zero.  A difference that only exceeds a lucky sample is
no bug, and one that exceeds every sample by orders of magnitude needs no second measurement.
Called by the ladder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judge.compare.comparison import Comparison


@dataclass(frozen=True, slots=True)
class Round:
    """More samples of noise: how many there are then in all, and for which failures.

    `near` is the multiple of its allowance below which a failure must lie for the round to be
    measured, in float64 and in other dtypes.
    """

    samples: int
    near_float64: float
    near: float

    def is_for(self, dtype: str, ratio: float) -> bool:
        """Whether an error of so many times its allowance in `dtype` is measured again."""
        return ratio < (self.near_float64 if dtype == "float64" else self.near)


#: A failure that is still this near after the last round is not certain where rounding has flipped
#: updates before.
LAST_NEAR = 4.0

#: A sample of a single Gaussian number is 10 000 times too small once in 10 000 times.  In float64
#: a saturated softmax amplifies rounding by more, and bugs stand out by 1e9.  By eight samples a
#: failure is 4 times too large only where each sample goes another way.
ROUNDS = (Round(3, 1e8, 1e4), Round(8, 1e8, 1e4), Round(24, LAST_NEAR, LAST_NEAR))

#: The checks that judge by measured rounding.
_MEASURED = frozenset({"norm", "slice", "projection", "decision"})

#: What is computed from the gradients of activations, these included.
_GRADIENTS = frozenset({"activation_grad", "param_grad"})
_OF_GRADIENTS = _GRADIENTS | {"unclipped_grad", "main_grad", "grad_norm", "optimizer_state"}


def needs_samples(comparison: Comparison, round: Round) -> bool:
    """Whether the failure that leads the report may be due to small samples of rounding."""
    failing = (f for f in comparison.findings if f.verdict == "fail" and f.where is not None)
    lead = min(failing, key=lambda finding: finding.order, default=None)
    if lead is None:
        return False
    if round.near > LAST_NEAR and _is_of_noise(comparison, lead):
        return True
    return round.is_for(comparison.dtype, _ratio(lead))


def _is_of_noise(comparison: Comparison, lead: Finding) -> bool:
    """Whether rounding decides gradients that the failing tensor may be a sum of.

    A single number of such gradients may come out alike under noise and without, by chance: what
    a normalisation of one element lets through is a few multiples of the last bit.
    """
    where = lead.where
    if where is None or where.kind not in _OF_GRADIENTS or lead.check not in _MEASURED:
        return False
    return any(id.step == where.step and id.kind in _GRADIENTS for id in comparison.insensitive)


def undecided(comparison: Comparison) -> None:
    """Make small failures inconclusive after a step in which rounding flipped elements of an
    update.

    An update of low precision may go the other way in a correct program, where its gradient has
    no certain sign.  What follows differs by more than any sample of noise need show.
    """
    if comparison.flipped_in is None:
        return
    comparison.findings[:] = [_undecided(f, comparison.flipped_in) for f in comparison.findings]


def _undecided(finding: Finding, flipped_in: int) -> Finding:
    where = finding.where
    if finding.verdict != "fail" or where is None or where.step <= flipped_in:
        return finding
    ratio = _ratio(finding)
    # Updates turn in the samples too: they do not explain a tensor that no sample moved.
    if not finding.allowed or not ratio < LAST_NEAR:
        return finding
    message = (
        f"differs by {ratio:.2g} times what rounding allows. In the earlier step {flipped_in}, "
        "rounding changed the direction of elements of an update, which may explain it. Use a "
        "smaller learning rate, or test a single step"
    )
    return msgspec.structs.replace(
        finding, verdict="inconclusive", check="diverged", message=message, pattern=None
    )


def _ratio(finding: Finding) -> float:
    """The error over its allowance; infinite for what measured rounding does not judge.

    An allowance of zero is the response of a tensor that noise happened not to move.
    """
    if finding.check not in _MEASURED or finding.error is None or finding.allowed is None:
        return math.inf
    if not math.isfinite(finding.error):
        return math.inf
    return finding.error / finding.allowed if finding.allowed else 1.0
