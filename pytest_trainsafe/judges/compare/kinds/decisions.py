"""Judges a decision, a discrete choice such as a router's top-k.

A choice may differ from the reference's where rounding can flip it: where the reference's scores of
the two options are nearly equal.  Called by the compare judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_trainsafe.core.rungs.table import rung_named


@dataclass(frozen=True, slots=True)
class DecisionJudgement:
    """The judgement of one decision, which makes `total` choices: the top k options of each row.

    `differ` counts the choices that differ from the reference's, and `wrong` those that differ by
    more than rounding explains.  Where two choices differ, the margin is the difference between the
    reference's scores of the two options; `margin` is the largest one, and `allowed` the largest
    that rounding explains.  `blind` is true if rounding explains every possible choice.  `message`
    is empty if the decision passes.
    """

    total: int
    differ: int = 0
    wrong: int = 0
    margin: float = 0.0
    allowed: float = 0.0
    blind: bool = False
    message: str = ""


def judge_decision(
    chosen: torch.Tensor,
    expected: torch.Tensor,
    scores: torch.Tensor,
    others: Sequence[torch.Tensor],
    dtype: str,
) -> DecisionJudgement:
    """Judge `chosen` [..., k] by the reference's choice [..., k] and scores [..., options].

    `others` are the scores in the runs that measure rounding.  The order of the chosen options
    within a row does not matter.
    """
    options, total = scores.shape[-1], expected[..., 0].numel()
    if chosen.shape != expected.shape:
        message = (
            f"has shape {list(chosen.shape)}, but its reference has shape {list(expected.shape)}"
        )
        return DecisionJudgement(total, total, total, float("inf"), message=message)
    if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < options:
        message = (
            f"the chosen options are numbered from {int(chosen.min())} to {int(chosen.max())}, but "
            f"the valid numbers are 0 to {options - 1}"
        )
        return DecisionJudgement(total, total, total, float("inf"), message=message)
    mine, theirs = _marked(chosen, options), _marked(expected, options)
    flipped = [
        float((other - scores).abs().max()) for other in others if other.shape == scores.shape
    ]
    # A margin is the difference of two scores, each of which has a rounding error.
    if rung_named(dtype).exact:
        return _judge_exactly(mine, theirs, total)
    allowed = 2 * rung_named(dtype).safety * max(flipped, default=0.0)
    differ = (mine != theirs).any(dim=-1)
    margins = _margins(scores, theirs & ~mine, mine & ~theirs)
    # A duplicated choice displaces another option, so it is never accepted.
    margins = margins.masked_fill(mine.sum(dim=-1) != theirs.sum(dim=-1), float("inf"))
    wrong = differ & ~(margins <= allowed)
    count, bad = int(differ.sum()), int(wrong.sum())
    worst = float(margins[differ].max()) if count else 0.0
    left = ~theirs
    blind = bool(left.any()) and bool((_margins(scores, theirs, left) <= allowed).all())
    message = ""
    if bad:
        message = (
            f"{count} of {total} choices differ from the reference's, {bad} of them by more than "
            f"rounding explains: the reference's scores of the two options differ by up to "
            f"{worst:.2g}, and rounding explains {allowed:.2g}"
        )
    return DecisionJudgement(total, count, bad, worst, allowed, blind, message)


def _judge_exactly(mine: torch.Tensor, theirs: torch.Tensor, total: int) -> DecisionJudgement:
    """The judgement of choices between exact scores, which no rounding can change."""
    count = int((mine != theirs).any(dim=-1).sum())
    message = f"{count} of {total} choices differ from the reference's" if count else ""
    return DecisionJudgement(total, count, count, message=message)


def _marked(chosen: torch.Tensor, options: int) -> torch.Tensor:
    """A mask of the options that are chosen, bool [..., options]."""
    marked = torch.zeros(*chosen.shape[:-1], options, dtype=torch.bool)
    return marked.scatter(-1, chosen, value=True)


def _margins(scores: torch.Tensor, ours: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """The best score of `ours` minus the worst score of `others`, in each row."""
    inf = float("inf")
    best = scores.masked_fill(~ours, -inf).amax(dim=-1)
    worst = scores.masked_fill(~others, inf).amin(dim=-1)
    return best - worst
