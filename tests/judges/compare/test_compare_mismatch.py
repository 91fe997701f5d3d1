"""A wrong tensor's finding counts the differing elements and locates the largest difference."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_trainsafe import TrainsafeFailure, assert_equivalent
from pytest_trainsafe.core.finding import Mismatch
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.explain import mismatch
from pytest_trainsafe.judges.compare.explain.mismatch import mismatch_of
from pytest_trainsafe.judges.compare.text.mismatch import mismatch_text
from tests.support.compare.traces import Bench, only


def test_a_mismatch_has_the_index_and_both_values_of_the_largest_difference() -> None:
    reference = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    candidate = reference.clone()
    candidate[1, 2] += 0.5
    candidate[2, 0] -= 0.25

    found = mismatch_of(candidate, reference, rounding=0.0)

    assert found == Mismatch(
        elements=12,
        differing=2,
        threshold=0.0,
        difference=0.5,
        index=(1, 2),
        value=6.5,
        expected=6.0,
    )


def test_an_element_within_its_share_of_the_rounding_is_not_counted_as_differing() -> None:
    reference = torch.zeros(100, dtype=torch.float64)
    candidate = torch.full((100,), 0.9, dtype=torch.float64)
    candidate[7] = 2.0

    found = mismatch_of(candidate, reference, rounding=10.0)

    assert found is not None
    assert (found.differing, found.threshold, found.index) == (1, 1.0, (7,))


def test_blocks_of_a_large_tensor_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mismatch, "BLOCK", 4)
    reference = torch.zeros(3, 5, dtype=torch.float64)
    candidate = reference + 1
    candidate[2, 1] = -3.0

    found = mismatch_of(candidate, reference, rounding=0.0)

    assert found is not None
    assert (found.differing, found.difference, found.index) == (15, 3.0, (2, 1))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_value_is_the_largest_difference(value: float) -> None:
    reference = torch.zeros(4, dtype=torch.float64)
    candidate = torch.tensor([1e300, value, 0.0, 0.0], dtype=torch.float64)

    found = mismatch_of(candidate, reference, rounding=1.0)

    assert found is not None
    assert (found.differing, found.difference, found.index) == (2, math.inf, (1,))


def test_integers_that_are_equal_in_float64_are_compared_exactly() -> None:
    reference = torch.tensor([2**53, 5])

    found = mismatch_of(torch.tensor([2**53 + 1, 5]), reference, rounding=0.0)

    assert found is not None
    assert (found.differing, found.value, found.expected) == (1, 2**53 + 1, 2**53)


def test_complex_and_scalar_tensors_have_a_mismatch() -> None:
    found = mismatch_of(torch.tensor([1 + 1j, 2j]), torch.tensor([1 + 1j, 3 - 1j]), 0.0)
    single = mismatch_of(torch.tensor(2.0), torch.tensor(1.5), 0.0)

    assert found is not None
    assert (found.index, found.value, found.expected) == ((1,), 2j, 3 - 1j)
    assert single is not None
    assert mismatch_text(single) == "the only element is 2 instead of 1.5, a difference of 5.0e-01"


def test_two_values_that_agree_in_nine_digits_are_shown_with_more() -> None:
    reference = torch.tensor([1.0, 0.450390625], dtype=torch.float64)
    found = mismatch_of(reference * (1 + 1e-13), reference, 0.0)
    assert found is not None
    ours, _, theirs = mismatch_text(found).rpartition(": ")[2].partition(" instead of ")
    assert ours != theirs
    assert float(ours) - float(theirs) == pytest.approx(found.difference, rel=0.1)


@pytest.mark.parametrize("shape", [(2, 2), (0,)])
def test_tensors_of_different_shapes_or_without_elements_have_no_mismatch(
    shape: tuple[int, ...],
) -> None:
    assert mismatch_of(torch.zeros(shape), torch.zeros(0), 0.0) is None


def failure(bench: Bench, **options: object) -> TrainsafeFailure:
    wrong = only("main_grad", "fc1.weight", lambda record, at, part: part + (at["tp"] == 1))
    rung = bench.rung(Point.of(tp=2), wrong, **options)  # type: ignore[arg-type]
    with pytest.raises(TrainsafeFailure) as caught:
        assert_equivalent(
            rung.candidate, rung.reference, perturbed=rung.perturbed, shadow=rung.shadow
        )
    return caught.value


def test_the_report_and_the_finding_have_the_mismatch(bench: Bench) -> None:
    failed = failure(bench)

    found = failed.findings[0].mismatch
    assert found is not None
    assert (found.elements, found.differing) == (128, 64)
    assert found.index[0] >= 8  # the rows of rank 1
    assert found.difference == pytest.approx(1.0)
    assert isinstance(found.value, float)
    assert isinstance(found.expected, float)
    assert found.value - found.expected == pytest.approx(1.0)
    text = " ".join(str(failed).split())
    assert f"elements {mismatch_text(found)}" in text
    assert "64 of 128 (50.0 %) differ by more than" in text


def test_a_single_non_finite_value_counts_as_one_differing_element(bench: Bench) -> None:
    def spoilt(record: object, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        part = part.clone()
        part[0, 0] = math.nan if at["tp"] else part[0, 0]
        return part

    rung = bench.rung(Point.of(tp=2), only("main_grad", "fc1.weight", spoilt))
    with pytest.raises(TrainsafeFailure) as caught:
        assert_equivalent(rung.candidate, rung.reference, perturbed=rung.perturbed)

    found = caught.value.findings[0].mismatch
    assert found is not None
    assert (found.differing, found.difference, found.index) == (1, math.inf, (8, 0))


def test_a_missing_tensor_has_no_mismatch(bench: Bench) -> None:
    wrong = only("main_grad", "fc1.weight", lambda record, at, part: None)
    rung = bench.rung(Point.of(tp=2), wrong)
    with pytest.raises(TrainsafeFailure) as caught:
        assert_equivalent(rung.candidate, rung.reference, perturbed=rung.perturbed)

    assert [found.mismatch for found in caught.value.findings if found.check == "missing"] == [None]
    assert "elements" not in str(caught.value)
