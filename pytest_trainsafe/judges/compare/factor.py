"""A factor that all gradients of a step share, and its text in a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import in_print

Clips = Literal["norms", "wrong norm", "right norm", "reference", ""]

#: The largest number of ranks whose factors are listed.
MAX_RANKS = 4


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor by which main gradients of one step are wrong.

    `factors` has the factor for each rank, `scaled` the gradients that it explains, and `apart` the
    wrong gradients that it does not explain.  `clips` is the evidence that the factor comes from
    clipping:

    - "norms": the factor is the ratio of the gradient norms that reference and candidate report;
    - "wrong norm": the reference clips, and the norm that the candidate reports is wrong, but the
      factor is not the ratio of the norms;
    - "right norm": the reference clips, and the norm that the candidate reports is right;
    - "reference": the reference clips, and there are no reported norms to compare;
    - "": there is no evidence of clipping, so the reduction or the loss may be scaled instead.

    `unsummed` names the axes over which the squares of the ranks' norms add up to the square of the
    reference's norm, although no rank's norm is the reference's: "dp", or "" for none.  `alone`
    names the axes along which ranks have different factors, and the clipped gradients of each rank
    alone have the norm of all of the reference's; "" for none, or if `unsummed` names some.
    """

    step: int
    factors: Mapping[int, float]
    scaled: tuple[TensorId, ...]
    apart: tuple[TensorId, ...]
    clips: Clips
    unsummed: str = ""
    alone: str = ""

    @property
    def of_parts(self) -> str:
        """The axes along which each rank computes the norm of its own part; "" for none."""
        return self.unsummed or self.alone

    @property
    def explanation(self) -> str:
        """What explains the scaled gradients, in words: "one factor explains all 4".

        It has no numbers: those of a Run with rewritten tensors are not the program's.
        """
        which = "one factor"
        if len({*self._texts().values()}) > 1:
            which += f" for each rank of {self.of_parts}" if self.of_parts else " for each rank"
        return f"{which} explains all {len(self.scaled)} main gradients"

    def _texts(self) -> dict[int, str]:
        return {rank: in_print(value, 1.0, 6)[0] for rank, value in self.factors.items()}

    @property
    def description(self) -> str:
        """The words after "the gradients are" in a report: `1.02973 times their reference`."""
        texts = self._texts()
        values = list(dict.fromkeys(texts.values()))
        if len(values) == 1:
            return f"{values[0]} times their reference"
        each = [f"{text} times on rank {rank}" for rank, text in texts.items()]
        more = f" and {len(each) - MAX_RANKS} more" if len(each) > MAX_RANKS else ""
        return f"multiples of their reference, {', '.join(each[:MAX_RANKS])}{more}"


def factor_text(factor: Factor) -> str:
    """The sentence on the common factor in a report."""
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
        f"{text}: clipping scales all gradients by one norm, so one wrong gradient changes all "
        "others. The patterns above describe the gradients after division by this factor"
    )


def factor_pattern(factor: Factor) -> Pattern:
    """The pattern for the first tensor of a report if nothing but a common factor is wrong."""
    short = f"all {len(factor.scaled)} main gradients are {factor.description}"
    return Pattern("clip factor", factor_text(factor), cause=factor_cause(factor), short=short)


def factor_cause(factor: Factor) -> str:
    """The likely cause if nothing but a common factor is wrong."""
    axes = factor.of_parts
    match factor.clips:
        case "right norm" if axes:
            return (
                f"each rank of {axes} clips by the norm of its own gradients alone, "
                "although the reported norm is right"
            )
        case "norms" | "wrong norm" | "reference" if axes:
            return (
                f"each rank of {axes} computes the gradient norm of its own part: a sum of the "
                f"squares over {axes} is missing, and clipping scales every gradient by the norm"
            )
        case "norms" | "wrong norm":
            return "the gradient norm is wrong, and clipping scales every gradient by it"
        case "right norm":
            return (
                "the factor by which gradients are clipped is wrong (the clipping limit, or how "
                "often clipping is applied), although the reported norm is right"
            )
        case "reference":
            return (
                "the factor by which gradients are clipped is wrong, or the norm from which it is "
                "computed is wrong; report the norm with ctx.grad_norm to distinguish the two"
            )
    return "every gradient is scaled by the same factor"


def _ratio(factor: Factor) -> str:
    by_norm = factor.clips == "norms"
    text = ", the ratio of the reference's gradient norm to the candidate's" if by_norm else ""
    if factor.unsummed:
        text += (
            f"; the squares of the norms that the ranks of {factor.unsummed} report add up to the "
            "square of the reference's norm"
        )
    if factor.alone:
        text += (
            "; the clipped gradients of each rank alone have the norm of all of the reference's "
            "clipped gradients"
        )
    return text
