"""Limits of patterns: what they must not explain, and the smallest tensors that they explain."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from pytest_trainsafe.judges.compare.patterns.mask import other_mask
from pytest_trainsafe.judges.compare.patterns.microbatches import other_weights
from pytest_trainsafe.judges.compare.patterns.narrow import narrower
from pytest_trainsafe.judges.compare.patterns.partial_sum import partial_sum
from pytest_trainsafe.judges.compare.patterns.rows import permuted, shifted
from pytest_trainsafe.judges.compare.patterns.scale import scaled
from pytest_trainsafe.judges.compare.patterns.stale import stale
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from pytest_trainsafe.judges.compare.patterns.zero import zero_in_part
from tests.support.compare.faults import (
    COPIED,
    FAULTS,
    WHOLE,
    drawn,
    like,
    planted,
    reference_tensor,
    shuffled,
    term,
    wrong_tensor,
)


def alone(
    value: torch.Tensor, reference: torch.Tensor, allowed: float = 1e-9, **given: object
) -> WrongTensor:
    """A wrong tensor without parts, in a mesh of one rank unless `sizes` are given."""
    sizes = given.pop("sizes", {"dp": 1})
    return WrongTensor(value, reference, [], sizes, allowed, **given)  # type: ignore[arg-type]


def times(scale: float, wrong: WrongTensor) -> WrongTensor:
    """The same fault, with all values multiplied by a number."""
    parts = [Part(p.rank, p.coordinates, scale * p.tensor, p.layout) for p in wrong.parts]
    return WrongTensor(
        value=scale * wrong.value,
        reference=scale * wrong.reference,
        parts=parts,
        sizes=wrong.sizes,
        allowed=scale * wrong.allowed,
        kind=wrong.kind,
        dtype=wrong.dtype,
        factors=wrong.factors,
        earlier={when: scale * earlier for when, earlier in wrong.earlier.items()},
        parameters=tuple(scale * each for each in wrong.parameters),
        terms={index: scale * each for index, each in wrong.terms.items()},
    )


def named(found: Pattern | None) -> tuple[str, str] | None:
    return (found.name, found.axis) if found else None


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
@pytest.mark.parametrize("name", FAULTS)
def test_the_size_of_the_values_does_not_change_the_pattern(name: str, scale: float) -> None:
    """Gradients may be far below 1, and sums of them far above."""
    wrong = planted(name, "float32")
    assert named(explain(times(scale, wrong))) == named(explain(wrong))


def test_copied_rows_of_eight_elements_are_explained_and_shorter_ones_are_not() -> None:
    for width, name in ((8, "misplaced rows"), (7, None)):
        reference = drawn("short rows", 24, width)
        found = permuted(alone(shuffled(reference, COPIED), reference))
        assert (found and found.name) == name, width


def test_noise_on_similar_rows_is_not_explained_as_a_shift() -> None:
    reference = drawn("row", 1, 16).repeat(24, 1)
    reference += 1e-3 * like("unlike", reference)
    noise = like("noise", reference)
    wrong = alone(reference + 0.1 * noise, reference, allowed=0.05 * float(noise.norm()))
    assert shifted(wrong) is None
    rolled = alone(reference.roll(1, 0), reference, allowed=1e-6)
    assert shifted(rolled) is not None


def test_a_different_mask_is_not_reported_if_unmasked_values_are_wrong() -> None:
    mask, other = (like(name, reference_tensor()) > -1 for name in ("mask", "another mask"))
    reference = reference_tensor() * mask
    assert other_mask(alone(reference_tensor() * other, reference)) is not None
    wrong = reference_tensor() + 0.5 * like("noise", reference)
    assert other_mask(alone(wrong * other, reference)) is None
    assert zero_in_part(alone(wrong * other, reference)) is None


@pytest.mark.parametrize(
    ("kind", "rows", "scattered"),
    [("activation", True, True), ("update", True, False), ("buffer", False, False)],
)
def test_zeros_are_not_called_masked_where_zero_is_a_value(
    kind: str, rows: bool, scattered: bool
) -> None:
    """A buffer may count or hold signs, and a step by signs may leave single elements alone."""
    reference, value = reference_tensor(), reference_tensor()
    value[3:5] = 0
    assert bool(zero_in_part(replace(alone(value, reference), kind=kind))) is rows
    masked = reference * (like("mask", reference) > -1)
    assert bool(zero_in_part(replace(alone(masked, reference), kind=kind))) is scattered


def test_a_different_choice_in_a_single_row_is_explained() -> None:
    reference, value = torch.zeros(1, 8, dtype=torch.float64), torch.zeros(1, 8).double()
    reference[0, [1, 4, 5]] = value[0, [1, 4, 6]] = 1.0
    found = other_mask(alone(value, reference))
    assert found is not None
    assert found.name == "other choice"


def test_a_missing_micro_batch_of_two_is_explained() -> None:
    terms = {index: drawn(f"term {index}", 24, 16) for index in (0, 1)}
    found = explain(alone(terms[0], terms[0] + terms[1], terms=terms))
    assert found is not None
    assert found.name == "other micro-batches"
    assert found.text.startswith("micro-batch 1 of 2")


def test_weights_of_micro_batches_are_not_fitted_to_a_few_elements() -> None:
    """Six weights fit any six elements."""
    terms = {index: drawn(f"few {index}", 6) for index in range(6)}
    reference = sum(terms.values(), torch.zeros(6, dtype=torch.float64))
    value = sum(
        (weight * each for weight, each in zip((1, 1, 3, -2, 5, 1), terms.values(), strict=True)),
        torch.zeros(6, dtype=torch.float64),
    )
    assert other_weights(alone(value, reference, terms=terms)) is None


def test_small_weights_of_all_micro_batches_are_not_explained() -> None:
    terms = {index: drawn(f"term {index}", 24, 16) for index in range(3)}
    reference = terms[0] + terms[1] + terms[2]
    value = 0.01 * (terms[0] - terms[1] + terms[2])
    assert other_weights(alone(value, reference, terms=terms)) is None


def test_micro_batches_whose_gradients_are_all_zero_explain_nothing() -> None:
    """A program that adds to a main gradient itself may leave zeros in the parameter's own."""
    reference = drawn("reference", 4, 4)
    terms = {index: torch.zeros(4, 4, dtype=torch.float64) for index in range(4)}
    assert other_weights(alone(2 * reference.flip(0), reference, terms=terms)) is None


@pytest.mark.parametrize("kind", ["activation", "param_grad", "main_grad"])
def test_a_factor_is_attributed_to_an_axis_that_seldom_scales_this_kind(kind: str) -> None:
    reference = reference_tensor()
    wrong = alone(3 * reference, reference, kind=kind, sizes={"dp": 2, "ep": 3})
    assert named(scaled(wrong)) == ("scaled", "ep")


def test_a_factor_equal_to_the_product_of_all_sizes_is_explained() -> None:
    reference = reference_tensor()
    sizes = {"tp": 4, "dp": 2}
    wrong = alone(48 * reference, reference, sizes=sizes, factors={"micro-batches": 6})
    found = scaled(wrong)
    assert found is not None
    assert "which equals tp*dp*micro-batches" in found.text


@pytest.mark.parametrize(("factor", "name"), [(0.2516, None), (0.25, "1/micro-batches")])
def test_a_single_number_has_the_factor_of_a_size_only_up_to_rounding(
    factor: float, name: str | None
) -> None:
    reference = torch.tensor(1.7, dtype=torch.float64)
    wrong = alone(factor * reference, reference, kind="loss", factors={"micro-batches": 4})
    found = scaled(wrong)
    assert (None if found is None else found.equals) == (None if name is None else (name,))


def test_boolean_masks_split_over_ranks_are_explained_as_a_partial_sum() -> None:
    mask = drawn("mask", 24, 16) > 0
    left = torch.arange(16) < 8
    point = Point.of(tp=2)
    held = mask & left, mask & ~left
    parts = [Part(rank, point.coordinates(rank), held[rank]) for rank in (0, 1)]
    wrong = WrongTensor(held[0].double(), mask.double(), parts, point.sizes, 0.0)
    assert named(partial_sum(wrong)) == ("partial sum", "tp")


def test_terms_with_a_bias_on_every_rank_are_a_partial_sum_only_for_activations() -> None:
    bias = drawn("bias", 1, 16)
    for kind, name in (("activation", "partial sum"), ("main_grad", None)):
        wrong = wrong_tensor(
            reference_tensor(), lambda r, at: term(r - bias, at["tp"], 4) + bias, WHOLE, kind=kind
        )
        found = explain(wrong)
        assert (found and found.name) == name
        assert found is None or "plus the same row everywhere" in found.text


def test_a_sum_accumulated_in_bfloat16_is_explained_as_a_narrower_dtype() -> None:
    terms = drawn("terms", 64, 24, 16)
    total = torch.zeros(24, 16, dtype=torch.bfloat16)
    for each in terms:
        total += each.bfloat16()
    reference = terms.sum(0)
    found = narrower(alone(total.double(), reference, dtype="float32"))
    assert found is not None
    assert found.name == "narrower dtype"
    eps = torch.finfo(torch.bfloat16).eps
    assert float((total - reference).norm() / reference.norm()) > eps


@pytest.mark.parametrize(("apart", "name"), [(0.0, "stale"), (0.05, None)])
def test_an_earlier_value_allows_its_own_noise_only(apart: float, name: str | None) -> None:
    """The noise of this micro-batch is larger than the earlier micro-batch's values."""
    reference, earlier = 1000 * drawn("large", 24, 16), drawn("small", 24, 16)
    error = float((earlier - reference).norm())
    value = earlier + apart * error * drawn("apart", 24, 16) / drawn("apart", 24, 16).norm()
    wrong = alone(
        value,
        reference,
        allowed=0.03 * error,
        earlier={"of the previous micro-batch, 0": earlier},
        earlier_allowed={"of the previous micro-batch, 0": 1e-6},
    )
    found = stale(wrong)
    assert (found and found.name) == name


def test_a_factor_close_to_one_is_not_shown_as_one() -> None:
    reference = reference_tensor()
    found = scaled(alone((1 + 1e-8) * reference, reference, allowed=1e-12))
    assert found is not None
    assert found.text == "the value is 1.00000001 times the reference"
