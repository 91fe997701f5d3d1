"""Finds outputs whose dimensions are in another order than the reference's, by trying permutations.

A layer may return [sequence, batch, hidden] at some Points and [batch, sequence, hidden] at others.
Called for outputs that no layout explains.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from pytest_trainsafe.core.layout import Sizes
from pytest_trainsafe.judges.compare.declarations.infer import AXES, Inferred, Sample, infer_all

#: For more dimensions than this, only exchanges of two dimensions are tried.
FEW_DIMENSIONS = 3

Permutation = tuple[int, ...]


def infer_permuted(
    samples: Sequence[Sample], sizes: Sizes, axes: Sequence[str] = AXES
) -> tuple[Inferred, Permutation]:
    """The layout that explains the samples after a permutation of dimensions, and the permutation.

    The result explains nothing unless the values confirm exactly one layout with exactly one
    permutation.
    """
    found: list[tuple[Inferred, Permutation]] = []
    if samples:
        for order in _orders(samples[0].reference.ndim):
            inferred = infer_all([_permuted(sample, order) for sample in samples], sizes, axes)
            if len(inferred.confirmed()) == 1:
                found.append((inferred, order))
    return found[0] if len(found) == 1 else (Inferred([]), ())


def _orders(ndim: int) -> Iterator[Permutation]:
    same = tuple(range(ndim))
    if ndim <= FEW_DIMENSIONS:
        yield from (order for order in itertools.permutations(same) if order != same)
        return
    for one, other in itertools.combinations(same, 2):
        order = list(same)
        order[one], order[other] = other, one
        yield tuple(order)


def _permuted(sample: Sample, order: Permutation) -> Sample:
    return replace(
        sample,
        parts=[
            msgspec.structs.replace(part, tensor=part.tensor.permute(order))
            if part.tensor.ndim == len(order)
            else part
            for part in sample.parts
        ],
    )
