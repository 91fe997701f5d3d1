"""An entry of a DeepSpeed config is modelled, harmless, or refused when tests are collected."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.fixtures.deepspeed_config import DeepSpeedConfig
from pytest_trainsafe.fixtures.deepspeed_engine import _require_known
from pytest_trainsafe.fixtures.deepspeed_keys import (
    ACCEPTED,
    REFUSED,
    DeepSpeedConfigError,
    check_keys,
)
from pytest_trainsafe.fixtures.deepspeed_rules import rules
from pytest_trainsafe.record.clock import ProgramError


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(DeepSpeedConfigError) as refused:
        check_keys(config, "the DeepSpeed config")
    return str(refused.value)


@pytest.mark.parametrize(
    ("config", "nearest"),
    [
        ({"gradient_cliping": 1.0}, "'gradient_clipping'"),
        ({"zero_optimisation": {"stage": 2}}, "'zero_optimization'"),
        ({"zero_optimization": {"stage": 2, "overlap_com": True}}, "'overlap_comm'"),
        ({"bf16": {"enable": True}}, "'enabled'"),
        ({"data_types": {"grad_acum_dtype": "fp32"}}, "'grad_accum_dtype'"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_known_one(
    config: dict[str, Any], nearest: str
) -> None:
    assert f"did you mean {nearest}?" in refusal(config)


def test_a_key_like_no_other_is_refused_with_what_to_do() -> None:
    assert "my_own is not known here" in refusal({"my_own": 1})
    assert "leave it out" in refusal({"my_own": 1})


@pytest.mark.parametrize("section", REFUSED)
def test_what_is_not_modelled_is_refused_with_the_reason(section: str) -> None:
    for key, why in REFUSED[section].items():
        entry = {key: {"enabled": True}}
        said = refusal({section: entry} if section else entry)

        assert f"{key} is not modelled: {why}" in said


@pytest.mark.parametrize(
    "config",
    [
        {"progressive_layer_drop": {"enabled": False, "theta": 0.5}},
        {"gradient_allreduce_op": "mean"},
        {"zero_optimization": {"zero_quantized_weights": False, "zero_hpz_partition_size": 1}},
        {"tensorboard": {"enabled": True, "output_path": "logs"}, "flops_profiler": {}},
    ],
)
def test_what_does_nothing_is_accepted(config: dict[str, Any]) -> None:
    check_keys(config, "the DeepSpeed config")


def test_no_key_is_both_accepted_and_refused() -> None:
    assert set(REFUSED) <= set(ACCEPTED)
    assert not any(ACCEPTED[section] & set(REFUSED[section]) for section in REFUSED)


def reasons(config: dict[str, Any], point: Point) -> list[str]:
    arguments = {"microbatches": 4, "config": {}}
    return [why for rule in rules(DeepSpeedConfig(config)) if (why := rule(point, arguments))]


AUTOCAST = {"torch_autocast": {"enabled": True}}


@pytest.mark.parametrize(
    ("config", "axes", "words"),
    [
        (AUTOCAST, {"dp": 2}, "give the test dtype=['bfloat16']"),
        (AUTOCAST, {"pp": 2, "dtype": "bfloat16"}, "outside of autocast"),
        ({"communication_data_type": "bf16"}, {"dp": 2}, "narrows what is compared"),
    ],
)
def test_a_point_that_would_not_train_what_the_config_says_is_skipped(
    config: dict[str, Any], axes: dict[str, Any], words: str
) -> None:
    (why,) = reasons(config, Point.of(**axes))

    assert words in why


def test_a_point_in_half_precision_may_communicate_and_autocast_in_it() -> None:
    config = {**AUTOCAST, "communication_data_type": "bf16"}

    assert reasons(config, Point.of(dp=2, dtype="bfloat16")) == []


class EngineOfARelease:
    """An engine that does not know the later entries of a config."""


@pytest.mark.parametrize(
    "config",
    [
        {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
        {"managed_gradient_accumulation": False},
    ],
)
def test_what_a_release_does_not_know_and_would_ignore_is_an_error(config: dict[str, Any]) -> None:
    pytest.importorskip("deepspeed")
    with pytest.raises(ProgramError, match="does not know the entry"):
        _require_known(EngineOfARelease(), config)

    _require_known(EngineOfARelease(), {"torch_autocast": {"enabled": False}})
