"""Patterns of exact numbers: a fault is recognised by equality, and a resemblance is not enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
import torch

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Layout, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.patterns.catalogue import PATTERNS, explain
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from tests.support.trace.packed_numbers import PACKED, packed_numbers

POINT = Point.of(dp=2, tp=2)

REFERENCE = packed_numbers(0, 8, 6)
OTHER = packed_numbers(1, 8, 6)
EARLIER = packed_numbers(2, 8, 6)

#: What a rank has in place of the reference, by its coordinates.
View = Callable[[Mapping[str, int]], torch.Tensor]


def wrong(view: View, layout: Layout = (), kind: str = "main_grad") -> WrongTensor:
    """What the ranks hold if each sees the tensor as `view` says."""
    parts = []
    for rank in range(POINT.world_size):
        at = POINT.coordinates(rank)
        parts.append(Part(rank, at, extract(view(at), layout, at, POINT.sizes), layout))
    value = merge(parts, POINT.sizes, numbers=PACKED).tensor
    assert value is not None
    return WrongTensor(
        value=value,
        reference=REFERENCE,
        parts=parts,
        sizes=POINT.sizes,
        allowed=0.0,
        kind=kind,
        dtype="float64",
        earlier={"of the previous step": EARLIER},
        left=(EARLIER,),
        numbers=PACKED,
    )


def term(place: int) -> torch.Tensor:
    """One of two terms whose sum is the reference."""
    return OTHER if place else PACKED.subtract(REFERENCE, OTHER)


def changed(rows: slice | list[int], columns: slice, values: torch.Tensor) -> torch.Tensor:
    """The reference with other values at some places."""
    found = REFERENCE.clone()
    found[rows, columns] = values[rows, columns]
    return found


def masked(*places: tuple[int, int]) -> torch.Tensor:
    """The reference with zeros at some places."""
    found = REFERENCE.clone()
    for place in places:
        found[place] = 0.0
    return found


def swapped() -> torch.Tensor:
    """The reference with three rows in a cycle."""
    return REFERENCE[[0, 3, 2, 5, 4, 1, 6, 7]]


ALL = slice(None)
SAME = packed_numbers(3, 1, 6)
FAULTS: dict[str, tuple[str, str, WrongTensor]] = {
    "partial": (
        "partial sum", "rank0 + rank1 equals the reference (exactly)",
        wrong(lambda at: term(at["tp"])),
    ),
    "partial mean": (
        "partial sum", "the mean over the ranks of dp (rank0 + rank2, divided by their number)",
        wrong(lambda at: PACKED.scale(term(at["dp"]), 2)),
    ),
    "twice": ("scaled", "2 times", wrong(lambda at: PACKED.scale(REFERENCE, 2))),
    "three halves": (
        "scaled", "1.5 times", wrong(lambda at: PACKED.scale(REFERENCE, Fraction(3, 2)))
    ),
    "negated": ("scaled", "-1 times", wrong(lambda at: PACKED.scale(REFERENCE, -1))),
    "other shard": (
        "another shard", "the part of tp rank 1",
        wrong(lambda at: REFERENCE.roll(4, 0), (Shard(0, "tp"),)),
    ),
    "stale": ("stale", "of the previous step", wrong(lambda at: EARLIER)),
    "uncleared": (
        "uncleared", "plus 2 times",
        wrong(lambda at: PACKED.add(REFERENCE, PACKED.scale(EARLIER, 2))),
    ),
    "bias": (
        "same term", "every row differs",
        wrong(lambda at: PACKED.add(REFERENCE, SAME.expand(8, 6)), kind="activation"),
    ),
    "zero": ("zero", "every value is zero", wrong(lambda at: torch.zeros_like(REFERENCE))),
    "zero in part": (
        "zero in part", "and right elsewhere",
        wrong(lambda at: changed([2, 3], ALL, torch.zeros_like(REFERENCE))),
    ),
    "shifted": ("shifted", "forward by one row", wrong(lambda at: REFERENCE.roll(1, 0))),
    "permuted": ("permuted rows", "index 1 holds the values", wrong(lambda at: swapped())),
    "confined": ("confined", "rows 2-3", wrong(lambda at: changed([2, 3], ALL, OTHER))),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_recognised(name: str) -> None:
    pattern, words, fault = FAULTS[name]

    found = explain(fault)

    assert found is not None
    assert found.name == pattern
    assert words in found.text


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"zero", "confined", "zero in part"}))
def test_a_fault_with_one_other_element_is_another_fault(name: str) -> None:
    """In floating point, 1 % of the error may be left; here one element of 48 refutes a pattern."""
    pattern, _, fault = FAULTS[name]
    parts = [Part(p.rank, p.coordinates, _with_one_other(p.tensor), p.layout) for p in fault.parts]
    value = merge(parts, POINT.sizes, numbers=PACKED).tensor
    assert value is not None

    found = explain(dataclasses.replace(fault, value=value, parts=parts))

    assert found is None or found.name != pattern


def _with_one_other(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.clone()
    found[-1, -1] = packed_numbers(9, 1)[0]
    return found


def test_unrelated_numbers_match_no_pattern() -> None:
    assert explain(wrong(lambda at: OTHER)) is None


def test_numbers_that_are_close_as_doubles_are_no_rounding() -> None:
    """Packed residues are doubles in [0, 2), whose distance means nothing."""
    close = (REFERENCE.view(torch.int64) + 1).view(torch.float64)
    assert torch.allclose(close, REFERENCE, rtol=1e-12)
    fault = wrong(lambda at: close)

    assert not fault.explains(close)
    assert all(pattern(fault) is None for pattern in PATTERNS)


def test_holes_of_exact_numbers_are_masked() -> None:
    layout: Layout = (Shard(0, "tp"),)
    parts = wrong(lambda at: REFERENCE, layout).parts

    merged = merge(parts[::2], POINT.sizes, shape=(8, 6), numbers=PACKED)

    assert merged.whole is None
    assert merged.missing is not None
    assert merged.missing.all(dim=1).tolist() == [False] * 4 + [True] * 4
    assert merged.tensor is not None
    assert torch.equal(merged.tensor[:4], REFERENCE[:4])
