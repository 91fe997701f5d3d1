"""What a wrong value is, in relation to the right one.

Each pattern is a function of a Wrong tensor that returns a Pattern or None.  A pattern must
explain the error: with it undone, what is left of the error is rounding, or a hundredth.
Called by the judge for the tensors that lead a report.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judge.compare.explain.confine import confined, non_finite
from pytest_trainsafe.judge.compare.explain.wrong import Wrong
from pytest_trainsafe.judge.compare.patterns.mask import other_mask
from pytest_trainsafe.judge.compare.patterns.microbatches import other_weights
from pytest_trainsafe.judge.compare.patterns.narrow import narrower
from pytest_trainsafe.judge.compare.patterns.old import stale
from pytest_trainsafe.judge.compare.patterns.rows import permuted, shifted
from pytest_trainsafe.judge.compare.patterns.scale import scaled
from pytest_trainsafe.judge.compare.patterns.shard import other_shard
from pytest_trainsafe.judge.compare.patterns.sum import partial_sum
from pytest_trainsafe.judge.compare.patterns.zero import zero, zero_in_part

#: The most specific first: what a pattern further down explains too is told by the first.
PATTERNS: tuple[Callable[[Wrong], Pattern | None], ...] = (
    zero,
    narrower,
    partial_sum,
    scaled,
    other_weights,
    other_shard,
    stale,
    zero_in_part,
    shifted,
    permuted,
    other_mask,
    confined,
)


def explain(wrong: Wrong) -> Pattern | None:
    """The first pattern that explains a wrong tensor; where the error lies, if none does."""
    if not bool(torch.isfinite(wrong.value).all()):
        return non_finite(wrong)
    for pattern in PATTERNS:
        found = pattern(wrong)
        if found is not None:
            return found
    return None
