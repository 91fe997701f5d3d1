"""Recognises a term that does not depend on the sample: a bias added on each rank of a sum."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import FEW, WrongTensor


def same_term(wrong: WrongTensor) -> Pattern | None:
    """Matches an activation to which one vector is added at every position but along one dimension.

    The dimension is the last one, or the channels of images.  The reference must differ between
    these positions by more than rounding, and each vector must have FEW elements or more.
    """
    shape = wrong.value.shape
    if wrong.kind != "activation" or wrong.value.is_complex() or len(shape) < 2:
        return None
    difference = wrong.difference
    for dim in dict.fromkeys((len(shape) - 1, 1)):
        if shape[dim] < FEW or wrong.value.numel() < 2 * shape[dim]:
            continue
        others = [each for each in range(len(shape)) if each != dim]
        if wrong.settles(_around(wrong, wrong.reference, others)):
            continue
        if wrong.settles(_around(wrong, difference, others)):
            what = "every row" if dim == len(shape) - 1 else "every position of a channel"
            return Pattern(
                "same term",
                f"{what} differs from the reference by the same values",
                cause=(
                    "a term that no input changes, such as a bias, is added once too often or not "
                    "at all: a bias before a sum over ranks is added on each of them"
                ),
                short=f"{what} is off by the same values, as by a bias",
            )
    return None


def _around(wrong: WrongTensor, tensor: torch.Tensor, dims: list[int]) -> float:
    """How much a tensor differs between the positions along `dims`."""
    return wrong.norm(wrong.minus(tensor, wrong.common(tensor, dims)))
