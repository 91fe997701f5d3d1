"""The owners of an expert that each hold a term of its gradient miss a sum over the owners."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.layout import Owned
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from tests.support.compare.faults import drawn, micro_batches, reference_tensor, wrong_tensor

#: Four ranks of dp, of which every second one owns the expert.
POINT = Point.of(dp=4, ep=2)
LAYOUT = (Owned(("cp", "dp"), 2),)


def held_by_owners(
    views: dict[int, torch.Tensor], dtype: str = "float32", small: bool = False
) -> WrongTensor:
    """A gradient of which the ranks in `views` alone hold a value, and so own it."""
    whole = drawn("bias", 3) if small else reference_tensor()
    wrong = wrong_tensor(whole, lambda r, at: r, dtype=dtype, point=POINT)
    parts = [Part(rank, POINT.coordinates(rank), value, LAYOUT) for rank, value in views.items()]
    value = merge(parts, POINT.sizes, shape=tuple(whole.shape)).tensor
    assert value is not None
    terms = {} if small else micro_batches()
    return dataclasses.replace(wrong, parts=parts, value=value, terms=terms)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("small", [False, True])
def test_owners_whose_terms_add_up_to_the_gradient_miss_a_sum_over_them(
    small: bool, dtype: str
) -> None:
    whole = drawn("bias", 3) if small else reference_tensor()
    first = drawn("a term", *whole.shape)
    found = explain(held_by_owners({1: first, 3: whole - first}, dtype, small))
    assert found is not None
    assert (found.name, found.axis) == ("partial sum", "dp")
    assert found.text == (
        "the ranks of dp that own this (ranks 1, 3) hold partial sums: rank1 + rank3 equals the "
        "reference"
    )
    assert found.cause == "an all-reduce over those ranks of dp is missing for this gradient"


def test_owners_that_hold_their_own_micro_batches_lose_none() -> None:
    """Each owner's term is the sum of the micro-batches whose tokens reach it."""
    own = [sum(micro_batches()[i] for i in numbers) for numbers in ((0, 1, 2), (3, 4, 5))]
    found = explain(held_by_owners({0: torch.as_tensor(own[0]), 2: torch.as_tensor(own[1])}))
    assert found is not None
    assert (found.name, found.axis) == ("partial sum", "dp")


def test_owners_that_lose_the_same_micro_batches_are_not_said_to_miss_a_sum() -> None:
    kept = torch.as_tensor(sum(term for i, term in micro_batches().items() if i < 4))
    found = explain(held_by_owners({0: kept, 2: kept}))
    assert found is not None
    assert found.name == "other micro-batches"


def test_replicas_of_half_the_gradient_are_a_factor_and_no_partial_sum() -> None:
    half = reference_tensor() / 2
    found = explain(held_by_owners({0: half, 2: half}))
    assert found is not None
    assert found.name == "scaled"


def test_owners_whose_values_add_up_to_another_gradient_are_not_explained_by_a_sum() -> None:
    whole = reference_tensor()
    found = explain(held_by_owners({0: drawn("one", *whole.shape), 2: drawn("two", *whole.shape)}))
    assert found is None or found.name != "partial sum"
