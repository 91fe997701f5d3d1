"""Finds outputs whose dimensions come in another order than the reference's, by trying.

A layer may return [sequence, batch, hidden] at some Points and [batch, sequence, hidden] at
others.  Called where no layout explains an output as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from pytest_trainsafe.core.layout import Sizes
from pytest_trainsafe.judge.compare.declarations.infer import AXES, Inferred, Sample, infer_all

#: With more dimensions than this, only exchanges of two are tried.
FEW_DIMENSIONS = 3

Permutation = tuple[int, ...]


def infer_permuted(
    samples: Sequence[Sample], sizes: Sizes, axes: Sequence[str] = AXES
) -> tuple[Inferred, Permutation]:
    """The layouts that explain the samples with their dimensions in another order, and that order.

    Only where the values confirm one layout with one order; else nothing is explained.
    """
    found: list[tuple[Inferred, Permutation]] = []
    if samples:
        for order in _orders(samples[0].reference.ndim):
            inferred = infer_all([_permuted(sample, order) for sample in samples], sizes, axes)
            if len(inferred.telling()) == 1:
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
