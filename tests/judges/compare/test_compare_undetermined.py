"""Gradient elements whose sign depends on rounding are masked, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import (
    ReferenceTolerances,
    Tolerance,
    Undetermined,
    _bytes,
    _undetermined,
    without,
)
from tests.support.compare.traces import Record, draw, parameter, write

GRADIENT = torch.tensor([1.0, -1.0, 1e-9, -1e-9, 0.0, 0.0], dtype=torch.float64)


def mask(*elements: int) -> torch.Tensor:
    return torch.tensor([index in elements for index in range(len(GRADIENT))])


def test_signs_of_elements_below_rounding_are_uncertain_unless_every_run_has_a_zero() -> None:
    noisy = GRADIENT.clone()
    noisy[5] = 1e-12
    uncertain, zero = _undetermined(GRADIENT, [GRADIENT, noisy], 1e-8)
    assert torch.equal(uncertain, mask(2, 3, 5))
    assert zero is not None
    assert torch.equal(zero, mask(4))


def test_there_is_no_mask_of_zeros_if_no_element_is_zero_in_every_run() -> None:
    noisy = torch.where(GRADIENT == 0, 1e-12, GRADIENT)
    uncertain, zero = _undetermined(GRADIENT, [noisy, GRADIENT], 1e-8)
    assert torch.equal(uncertain, mask(2, 3, 4, 5))
    assert zero is None


def test_a_complex_element_is_uncertain_by_its_magnitude() -> None:
    gradient = torch.tensor([1 + 1j, 1e-9 + 1e-9j, 1e-9 + 1j], dtype=torch.complex128)
    uncertain, zero = _undetermined(gradient, [gradient], 1e-8)
    assert uncertain.tolist() == [False, True, False]
    assert zero is None


def test_only_elements_that_are_zero_in_every_reference_run_count_as_rounding_of_zero() -> None:
    tolerance = Tolerance(True, 6, 1.0, True, False, None, zero=mask(4, 5))
    assert tolerance.rounding_of_zero(GRADIENT) is None
    rounded = torch.where(mask(5), 1e-20, GRADIENT)
    found = tolerance.rounding_of_zero(rounded)
    assert found is not None
    assert torch.equal(found, mask(5))
    assert tolerance.rounding_of_zero(rounded[:3]) is None


def test_elements_stay_undetermined_in_later_steps() -> None:
    first = Undetermined.of(mask(1), 0, None)
    second = Undetermined.of(mask(3), 1, first, own=mask(4))
    assert torch.equal(second.mask, mask(1, 3, 4))
    assert second.key[:2] == (0, 1)
    assert second.key != Undetermined.of(mask(3), 1, first, own=mask(5)).key
    assert torch.equal(without(GRADIENT, first), torch.where(mask(1), 0.0, GRADIENT))
    assert torch.equal(without(GRADIENT, None), GRADIENT)


def test_cached_tolerances_count_the_bytes_of_their_masks() -> None:
    plain = Tolerance(True, 6, 1.0, True, False, None)
    masked = Tolerance(True, 6, 1.0, True, False, None, undetermined=mask(1), zero=mask(4))
    assert _bytes(masked) == _bytes(plain) + 2 * len(GRADIENT)


def test_tolerance_loads_the_reference_tensor_if_the_caller_passes_none(tmp_path: Path) -> None:
    id = parameter("main_grad", "fc1.bias", 0)
    gradient = draw("gradient", (8,))
    traces = [
        write(tmp_path / name, [Record(id, gradient * factor)])
        for name, factor in (("reference", 1.0), ("perturbed", 1 + 1e-15))
    ]
    found = ReferenceTolerances(RungTraces("float64", traces[0], traces[0], traces[1])).tolerance(
        id, 1.0
    )
    assert (found.finite, found.elements, found.moves) == (True, 8, True)
    assert found.size == pytest.approx(float(gradient.norm()))
    assert found.allowed is not None
