"""Which micro-batches a dp rank computes, in each order, and which orders are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.steps.microbatches import numbers_of, permuted


@pytest.mark.parametrize(
    ("order", "shares"),
    [
        ("contiguous", [[0, 1, 2], [3, 4, 5]]),
        ("strided", [[0, 2, 4], [1, 3, 5]]),
        ("split", [[0, 1, 2, 3, 4, 5]] * 2),
        ([5, 0, 4, 1, 3, 2], [[5, 0, 4], [1, 3, 2]]),
        (torch.tensor([1, 0, 3, 2, 5, 4]), [[1, 0, 3], [2, 5, 4]]),
        (lambda rank, ranks: range(5) if rank else [5], [[5], [0, 1, 2, 3, 4]]),
    ],
    ids=["contiguous", "strided", "split", "sequence", "tensor", "function"],
)
def test_an_order_divides_the_micro_batches_among_the_dp_ranks(
    order: Any, shares: list[list[int]]
) -> None:
    assert [list(numbers_of(6, rank, 2, order)) for rank in range(2)] == shares


@pytest.mark.parametrize("order", ["contiguous", "strided", "split", lambda rank, ranks: range(6)])
def test_a_single_device_computes_all_micro_batches_in_order(order: Any) -> None:
    assert list(numbers_of(6, 0, 1, order)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("total", "order", "message"),
    [
        (3, "contiguous", "3 micro-batches cannot be divided evenly among dp=2.*a multiple of 2"),
        (3, "strided", "3 micro-batches cannot be divided evenly among dp=2.*a function"),
        (4, "striped", r"order='striped'\): order must be 'contiguous'.*'strided'.*'split'"),
        (4, 7, r"order=7\): order must be 'contiguous'"),
        (4, [0, 1, 2], "the sequence `order` must .* from 0 to 3 to .*, but 3 is given to no"),
        (4, [0, 1, 2, 2], "3 is given to no dp rank; 2 is given twice"),
        (4, [1, 2, 3, 4], "0 is given to no dp rank; 4 is outside of 0 to 3"),
        (4, [0.0, 1.0, 2.0, 3.0], "order must be 'contiguous'"),
        (4, lambda rank, ranks: [0, 1], "the function.*2, 3 are given to no dp rank; 0, 1 are giv"),
        (4, lambda rank, ranks: None, "the function `order` returned None for dp rank 0"),
        (0, "contiguous", "an integer of at least 1"),
        ("4", "contiguous", "an integer of at least 1"),
    ],
)
def test_an_order_must_assign_each_micro_batch_exactly_once(
    total: Any, order: Any, message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        numbers_of(total, 1, 2, order)


def test_an_order_function_is_called_with_a_rank_and_the_number_of_ranks() -> None:
    arguments: list[tuple[int, int]] = []

    def order(rank: int, ranks: int) -> list[int]:
        arguments.append((rank, ranks))
        return [rank]

    share: Callable[..., Any] = numbers_of
    assert share(3, 2, 3, order) == [2]
    assert arguments == [(0, 3), (1, 3), (2, 3)]


def test_a_permutation_renumbers_the_micro_batches_of_every_dp_rank():
    blocks = [numbers_of(4, rank, 2) for rank in (0, 1)]

    assert [permuted(numbers, 4, (1, 3, 2, 0)) for numbers in blocks] == [[1, 3], [2, 0]]
    assert permuted(blocks[0], 4, ()) is blocks[0]


def test_a_permutation_of_another_number_of_micro_batches_is_refused():
    with pytest.raises(
        ProgramError, match=r"microbatches\(3\): this Run changes the order of the 4 micro"
    ):
        permuted(range(3), 3, (1, 3, 2, 0))
