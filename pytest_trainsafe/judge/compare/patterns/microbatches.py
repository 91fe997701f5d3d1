"""Recognises gradients in which micro-batches are missing, repeated or weighted wrongly."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judge.compare.explain.wrong_tensor import WrongTensor

#: The allowed error of a measured weight.
BLUR = 0.02

#: How many elements are needed per fitted weight.
ELEMENTS_PER_WEIGHT = 4


def other_weights(wrong: WrongTensor) -> Pattern | None:
    """Matches a sum over micro-batches in which some are missing or have another weight.

    Fits the value, and the reference too, as a weighted sum of the reference's micro-batch
    gradients.  Both must fit, and the weights of some micro-batches must differ.
    """
    count = len(wrong.terms)
    if count < 2 or wrong.value.is_complex():
        return None
    if any(term.shape != wrong.value.shape for term in wrong.terms.values()):
        return None
    if wrong.value.numel() < ELEMENTS_PER_WEIGHT * count:
        return None
    terms = torch.stack([term.reshape(-1) for term in wrong.terms.values()], dim=1)
    # With a Gram matrix, one pass over the terms is enough.
    gram = terms.T @ terms
    if float(torch.linalg.cond(gram)) > 1e8:
        return None  # micro-batches with similar gradients cannot be distinguished
    both = torch.stack([wrong.value.reshape(-1), wrong.reference.reshape(-1)], dim=1)
    weights = torch.linalg.solve(gram, terms.T @ both)
    fitted = (terms @ weights).T.reshape(2, *wrong.value.shape)
    if not (wrong.explains(fitted[0], wrong.value) and wrong.explains(fitted[1])):
        return None
    ratios = (weights[:, 0] / weights[:, 1]).tolist()
    named = dict(zip(wrong.terms, ratios, strict=True))
    missing = [str(index) for index, ratio in named.items() if abs(ratio) <= BLUR]
    right = [index for index, ratio in named.items() if abs(ratio - 1) <= BLUR]
    if len(missing) == count:
        return None
    if missing:
        batches = f"micro-batch{'es' if len(missing) > 1 else ''} {', '.join(missing)}"
        text = (
            f"{batches} of {count} (counted from 0) {'are' if len(missing) > 1 else 'is'} missing "
            "from the sum"
        )
        cause = "gradients are cleared, reduced or used before all micro-batches are added"
    elif right and len(right) < count:
        listed = ", ".join(f"micro-batch {i}: {r:.3g}" for i, r in named.items() if i not in right)
        text = f"some micro-batches have a wrong weight in the sum ({listed} times the right one)"
        cause = "a micro-batch is counted again, or weighted by the wrong number of tokens"
    else:
        return None
    return Pattern("other micro-batches", text, cause=cause)
