"""Finds how a wrong value is related to the correct one.

Each pattern is a function of a WrongTensor that returns a Pattern or None.  It matches only if it
explains the error: once the pattern is undone, the error that remains must be rounding or at most
1 % of the original.  Called by the judge for the first tensors of a report.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.decay import decayed
from pytest_trainsafe.judges.compare.patterns.mask import other_mask
from pytest_trainsafe.judges.compare.patterns.microbatches import other_weights, own_terms
from pytest_trainsafe.judges.compare.patterns.narrow import narrower
from pytest_trainsafe.judges.compare.patterns.partial_sum import partial_sum
from pytest_trainsafe.judges.compare.patterns.regions import confined, non_finite
from pytest_trainsafe.judges.compare.patterns.rows import permuted, same_row, shifted
from pytest_trainsafe.judges.compare.patterns.same_term import same_term
from pytest_trainsafe.judges.compare.patterns.scale import scaled
from pytest_trainsafe.judges.compare.patterns.shard import other_shard
from pytest_trainsafe.judges.compare.patterns.stale import stale, uncleared
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from pytest_trainsafe.judges.compare.patterns.zero import zero, zero_in_part

#: The most specific patterns first: the first match is reported.
PATTERNS: tuple[Callable[[WrongTensor], Pattern | None], ...] = (
    zero,
    narrower,
    partial_sum,
    scaled,
    own_terms,
    other_weights,
    other_shard,
    stale,
    uncleared,
    decayed,
    same_term,
    zero_in_part,
    shifted,
    permuted,
    other_mask,
    same_row,
    confined,
)


def explain(wrong: WrongTensor) -> Pattern | None:
    """The first pattern that explains a wrong tensor; None if no pattern does.

    If some values are not finite, the pattern only says where they are.
    """
    if not bool(torch.isfinite(wrong.value).all()):
        return non_finite(wrong)
    for pattern in PATTERNS:
        found = pattern(wrong)
        if found is not None:
            return found
    return None
