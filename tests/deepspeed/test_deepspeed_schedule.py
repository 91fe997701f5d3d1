"""The reference follows the config's learning rate scheduler, computed without DeepSpeed."""

from __future__ import annotations

import math
from typing import Any

import deepspeed_programs
import pytest
import torch
from torch import nn

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.fixtures.deepspeed_keys import DeepSpeedConfigError
from pytest_trainsafe.fixtures.deepspeed_schedule import TORCH, check_scheduler, scheduled


def optimizer() -> torch.optim.Optimizer:
    """Two groups, at rates of their own."""
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    return torch.optim.SGD([{"params": [first], "lr": 0.3}, {"params": [second]}], lr=0.1)


def rates(section: dict[str, Any], steps: int = 12) -> list[list[float]]:
    """The rates of both groups in each step."""
    stepped = optimizer()
    advance, found = scheduled(section, stepped), []
    for _ in range(steps):
        found.append([group["lr"] for group in stepped.param_groups])
        stepped.step()
        advance()
    return found


SECTIONS: dict[str, dict[str, Any]] = {
    "log": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": 0.01, "warmup_max_lr": 0.5, "warmup_num_steps": 6},
    },
    "lists": {
        "type": "WarmupLR",
        "params": {
            "warmup_min_lr": [0.1, 0.0],
            "warmup_max_lr": [0.2, 0.4],
            "warmup_num_steps": 5,
            "warmup_type": "linear",
        },
    },
    "decay": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": 8, "warmup_num_steps": 4, "warmup_type": "linear"},
    },
    "cosine": {
        "type": "WarmupCosineLR",
        "params": {"total_num_steps": 9, "warmup_num_steps": 3, "cos_min_ratio": 0.1},
    },
    "range": {
        "type": "LRRangeTest",
        "params": {"lr_range_test_step_size": 3, "lr_range_test_staircase": True},
    },
    "cycle": {
        "type": "OneCycle",
        "params": {
            "cycle_min_lr": 0.1,
            "cycle_max_lr": 0.4,
            "cycle_first_step_size": 3,
            "cycle_second_step_size": 5,
            "decay_step_size": 2,
            "decay_lr_rate": 0.5,
            "cycle_momentum": False,
        },
    },
}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_rates_of_each_step_are_those_that_deepspeed_sets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime import lr_schedules

    section, stepped, theirs = SECTIONS[name], optimizer(), []
    schedule = getattr(lr_schedules, section["type"])(stepped, **section["params"])
    for _ in range(12):
        theirs.append([group["lr"] for group in stepped.param_groups])
        schedule.step()

    for ours, others in zip(rates(section), theirs, strict=True):
        assert ours == pytest.approx(others)


def test_a_cosine_begins_at_its_least_ratio() -> None:
    params = {"total_num_steps": 9, "warmup_num_steps": 4, "warmup_min_ratio": 0.5}

    first, second, third, *_ = rates({"type": "WarmupCosineLR", "params": params})

    assert first == second == pytest.approx([0.15, 0.05])
    assert third[0] == pytest.approx(0.3 * (0.5 + 0.5 * math.log(2, 4)))


def test_schedulers_of_torch_are_torchs() -> None:
    params = {"step_size": 2, "gamma": 0.5}

    assert [each[1] for each in rates({"type": "StepLR", "params": params}, 4)] == [
        0.1,
        0.1,
        0.05,
        0.05,
    ]
    assert all(hasattr(torch.optim.lr_scheduler, name) for name in TORCH)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"type": "WarmUpLR"}, ["'WarmUpLR'", "did you mean 'WarmupLR'?"]),
        ({"type": "ReduceLROnPlateau"}, ["not modelled", "leave the section out"]),
        ({"type": "WarmupLR"}, ["needs the parameter warmup_max_lr", "differs between releases"]),
        ({"type": "WarmupDecayLR"}, ["needs the parameter total_num_steps"]),
        (
            {"type": "WarmupLR", "params": {"warmup_max_lr": 1, "warmup_steps": 3}},
            ["'warmup_steps'", "warmup_num_steps"],
        ),
        (
            {"type": "WarmupLR", "params": {"warmup_max_lr": 1, "warmup_type": "sine"}},
            ["'sine'", "'log' or 'linear'"],
        ),
        (
            {
                "type": "OneCycle",
                "params": {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_momentum": True},
            },
            ["cycle_momentum false"],
        ),
    ],
)
def test_a_scheduler_that_cannot_be_followed_is_refused(
    section: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(DeepSpeedConfigError) as refused:
        check_scheduler(section, "the DeepSpeed config")

    assert all(word in str(refused.value) for word in words), refused.value


def warming(steps: int) -> dict[str, Any]:
    params = {"warmup_max_lr": 0.01, "warmup_num_steps": steps, "warmup_type": "linear"}
    return {"config": {"scheduler": {"type": "WarmupLR", "params": params}}}


@pytest.mark.trainsafe(
    deepspeed_programs.odd_parameters,
    zero=2,
    args={**warming(4), "steps": 3, "resized": "shrinking"},
)
def test_a_training_with_a_warm_up_and_a_batch_that_changes_passes(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    deepspeed_programs.odd_parameters,
    zero=3,
    args={**warming(4), "steps": 3},
    candidate_args=warming(8),
)
def test_another_warm_up_is_a_difference_in_the_first_step_that_it_moves(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    with pytest.raises(TrainsafeFailure, match=r"embedding.* · update · step 2"):
        assert_trainsafe(candidate_trace, reference_trace)
