"""Values of which cancelling terms leave nothing but rounding are explained as zeros."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from tests.support.compare.faults import like, reference_tensor, wrong_tensor

CAUSE = "no value reaches this tensor: it is detached, masked, or cleared before it is used"


@pytest.mark.parametrize(
    ("dtype", "size"), [("float64", 1e-17), ("float64", 1e-20), ("float32", 1e-9)]
)
def test_a_gradient_that_is_zero_up_to_rounding_reaches_nothing(dtype: str, size: float) -> None:
    found = explain(
        wrong_tensor(reference_tensor(), lambda r, at: size * like("residue", r), dtype=dtype)
    )
    assert found is not None
    assert (found.name, found.text) == ("zero", "every value is zero up to rounding")
    assert found.cause == CAUSE


def test_a_multiple_of_the_reference_far_below_rounding_has_no_wrong_sign() -> None:
    found = explain(wrong_tensor(reference_tensor(), lambda r, at: -6.7e-21 * r, dtype="float64"))
    assert found is not None
    assert found.name == "zero"


@pytest.mark.parametrize("power", [10, 16, 24])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_loss_scale_that_is_divided_out_again_is_a_factor(dtype: str, power: int) -> None:
    found = explain(wrong_tensor(reference_tensor(), lambda r, at: r * 2.0**-power, dtype=dtype))
    assert found is not None
    assert found.name == "scaled"


def test_noise_around_a_reference_that_is_zero_up_to_rounding_is_not_called_zero() -> None:
    tiny = 1e-20 * reference_tensor()
    found = explain(wrong_tensor(tiny, lambda r, at: 1e-20 * like("other", r), dtype="float64"))
    assert found is None or found.name != "zero"


def test_an_update_that_is_merely_small_is_not_called_zero() -> None:
    small = wrong_tensor(
        reference_tensor(), lambda r, at: torch.as_tensor(1e-20) * r, dtype="float64", kind="update"
    )
    found = explain(small)
    assert found is not None
    assert found.name == "scaled"
