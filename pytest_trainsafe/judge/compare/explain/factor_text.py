"""A factor that all gradients of a step share, and its text in a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.tensor_id import TensorId

Clips = Literal["norms", "wrong norm", "right norm", "reference", ""]

#: The largest number of ranks whose factors are listed.
MAX_RANKS = 4


@dataclass(frozen=True, slots=True)
class Factor:
    """By rank, the factor of the main gradients `scaled` of one step.

    The gradients `apart` are wrong beyond the factor.  `clips` is the evidence that the factor is
    applied after the reduction, as clipping is: "norms" (it is the ratio of the reported norms),
    "wrong norm" and "right norm" (the reported norm does not match it), "reference" (the reference
    clips, and no norm is reported), or "" for no evidence: then the reduction, or the loss, may be
    scaled.
    """

    step: int
    factors: Mapping[int, float]
    scaled: tuple[TensorId, ...]
    apart: tuple[TensorId, ...]
    clips: Clips

    @property
    def description(self) -> str:
        """The factor in words: `1.02973 times their reference`."""
        values = list(dict.fromkeys(f"{value:.6g}" for value in self.factors.values()))
        if len(values) == 1:
            return f"{values[0]} times their reference"
        each = [f"{value:.6g} times on rank {rank}" for rank, value in self.factors.items()]
        more = f" and {len(each) - MAX_RANKS} more" if len(each) > MAX_RANKS else ""
        return f"their reference, {', '.join(each[:MAX_RANKS])}{more}"


def factor_text(factor: Factor) -> str:
    """The row of a report on the common factor."""
    count = len(factor.scaled)
    if not factor.apart:
        return (
            f"all {count} main gradients of step {factor.step} are {factor.description}"
            f"{_ratio(factor)}"
        )
    text = (
        f"the other {count} main gradients of step {factor.step} are {factor.description}"
        f"{_ratio(factor)}, and nothing else is wrong with them"
    )
    if not factor.clips:
        return text
    return (
        f"{text}: clipping scales every gradient by one norm, so one wrong gradient changes all. "
        "The gradients above are explained after division by this factor"
    )


def factor_pattern(factor: Factor) -> Pattern:
    """The pattern of a report's first tensor if only a common factor is wrong."""
    return Pattern("clip factor", factor_text(factor), cause=factor_cause(factor))


def factor_cause(factor: Factor) -> str:
    """The cause if only a clipping factor is wrong."""
    match factor.clips:
        case "norms" | "wrong norm":
            return "the gradient norm is wrong, and clipping scales every gradient by it"
        case "right norm":
            return (
                "the factor by which gradients are clipped is wrong, though the reported norm is "
                "right: its limit, or how often it is applied"
            )
        case "reference":
            return (
                "the factor by which gradients are clipped is wrong, or the norm from which it is "
                "computed is; report the norm with ctx.grad_norm to distinguish the two"
            )
    return "every gradient is scaled by the same factor"


def _ratio(factor: Factor) -> str:
    if factor.clips != "norms":
        return ""
    return ", the ratio of the reference's gradient norm to the candidate's"
