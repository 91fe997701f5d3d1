"""Gradients and updates below the resolution of bfloat16 parameters are not lost."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_trainsafe.reference_models.training import main_gradients
from pytest_trainsafe.reference_models.training.optimizer import adamw


def test_updates_below_the_resolution_of_bfloat16_accumulate() -> None:
    weight: Any = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = adamw([weight], learning_rate=1e-3)

    seen = []
    for _ in range(10):
        (weight.sum() * 0.5).backward()
        main_gradients.accumulate([weight])
        optimizer.step()
        main_gradients.clear([weight])
        seen.append(weight[0].item())

    assert seen[0] == 1.0  # the first thousandth is less than half a step of 1/256 below 1
    assert abs(weight.main_param[0].item() - 0.989) < 1e-3
    assert seen[-1] < 0.995
    assert torch.equal(weight, weight.main_param.bfloat16())


def test_small_gradients_accumulate_in_the_float32_main_gradient() -> None:
    weight: Any = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    adamw([weight], learning_rate=1e-3)

    for scale in (1.0, *[0.001] * 100):
        (weight * scale).sum().backward()
        main_gradients.accumulate([weight])

    assert main_gradients.main_gradient(weight).dtype == torch.float32
    assert abs(weight.main_grad.item() - 1.1) < 1e-3
    main_gradients.clear([weight])
    assert weight.main_grad.item() == 0.0


def test_float64_parameters_have_no_master_copies() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = adamw([weight], learning_rate=1e-3)
    (weight * 3).sum().backward()
    main_gradients.accumulate([weight])

    assert main_gradients.main_gradient(weight) is weight.grad
    assert optimizer.param_groups[0]["params"][0] is weight
    assert not hasattr(weight, "main_param")
