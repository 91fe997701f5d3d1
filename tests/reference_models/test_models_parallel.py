"""The parallel models compute what the single-device models compute."""

from __future__ import annotations

import math

import pytest

from tests.support.reference_models.errors import ROUNDING, key_bias_drifts


@pytest.mark.parametrize(
    ("run", "reference"),
    [
        ("tp cp sp", "default"),
        ("dp tp clip", "clip"),
        ("llama", "llama"),
        ("llama ring", "small llama"),
        ("llama recompute", "small llama"),
        ("ring of two", "small"),
        ("ring of four", "small"),
        ("overlap", "small"),
        ("overlap sp", "small"),
        ("recompute", "default"),
        ("fp8", "fp8"),
        ("fp8 dp tp", "fp8"),
        ("fp8 overlap", "fp8"),
        ("recompute attention", "default"),
        ("buckets", "default"),
        ("buckets of all", "clip"),
        ("zero", "clip"),
        ("cnn", "cnn"),
        ("cnn zero", "cnn"),
        ("lstm", "lstm"),
        ("lstm zero", "lstm"),
        ("zero over cp", "default"),
        ("zero sp", "default"),
    ],
)
def test_every_tensor_equals_the_single_device_one_in_float64(
    parallel, single, run, reference
) -> None:
    errors = parallel[run].errors(single[reference])

    assert {"loss", "grad_norm", "main_grad", "param_grad", "activation", "activation_grad"} <= {
        key.split(" ")[0] for key in errors
    }
    assert {k: e for k, e in errors.items() if e > ROUNDING and not key_bias_drifts(k)} == {}
    assert max((error for k, error in errors.items() if key_bias_drifts(k)), default=0) < 1e-9


def test_clipping_changes_the_gradients_of_the_reference(single) -> None:
    assert float(single["clip"].tensors["grad_norm . - 0"]) > 0.5
    assert single["clip"].errors(single["default"])["main_grad output_layer.weight - 0"] > 0.01


@pytest.mark.parametrize(
    ("run", "reference"),
    [
        ("bfloat16", "small bfloat16"),
        ("ring bfloat16", "small bfloat16"),
        ("llama bfloat16", "llama bfloat16"),
        ("buckets bfloat16", "small bfloat16"),
        ("zero bfloat16", "small bfloat16"),
    ],
)
def test_bfloat16_tensors_differ_from_the_single_device_ones_by_at_most_5_percent(
    parallel, single, run, reference
) -> None:
    errors = parallel[run].errors(single[reference])

    assert {k: e for k, e in errors.items() if e > 0.05 and not key_bias_drifts(k)} == {}


@pytest.mark.parametrize(
    ("run", "reference"),
    [
        ("moe", "moe"),
        ("moe ep", "moe"),
        ("moe ep tp", "moe clip"),
        ("deepseek", "deepseek"),
        ("deepseek ep", "deepseek"),
    ],
)
def test_a_mixture_of_experts_equals_the_single_device_one(
    parallel, single, run, reference
) -> None:
    errors = parallel[run].errors(single[reference])

    inside = {
        key
        for key, error in errors.items()
        if error == math.inf and key not in parallel[run].tensors
    }
    assert all(".experts." in key for key in inside)  # the layers around them are all there
    assert not any(key.startswith(("param ", "main_grad")) for key in inside)
    wrong = {k: e for k, e in errors.items() if e > ROUNDING and k not in inside}
    assert wrong == {}
