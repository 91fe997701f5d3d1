"""Recorded gradients are divided by the loss scale if the engine multiplied the loss by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_trainsafe.frameworks.deepspeed.loss_scale import LossScale


class Engine:
    """Multiplies the loss by `applied`, although its optimizer states the loss scale `stated`."""

    def __init__(self, stated: float | None, applied: float, steps: int) -> None:
        self.optimizer = SimpleNamespace(loss_scale=stated)
        self.applied = applied
        self.steps = steps

    def gradient_accumulation_steps(self) -> int:
        return self.steps

    def backward(self, loss: torch.Tensor) -> str:
        (loss * self.applied).backward()
        return "what the engine returns"


def recorded(engine: Any) -> float:
    """The gradient of a weight whose loss is the weight itself, divided by the loss scale."""
    weight = torch.ones((), requires_grad=True)
    scale, seen = LossScale(engine), []
    weight.register_hook(lambda grad: seen.append(float(scale.undone(grad))))

    assert engine.backward(weight * 1.0) == "what the engine returns"
    return seen[0]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("stated", [None, 1.0, 65536.0])
def test_the_gradient_of_an_unscaled_loss_is_not_divided_by_the_stated_scale(
    stated: float | None, steps: int
) -> None:
    assert recorded(Engine(stated, 1 / steps, steps)) == 1 / steps


@pytest.mark.parametrize(("applied", "expected"), [(65536 / 4, 0.25), (65536.0, 1.0)])
def test_the_scale_is_removed_with_and_without_division_by_the_accumulation_steps(
    applied: float, expected: float
) -> None:
    assert recorded(Engine(65536.0, applied, steps=4)) == expected


def test_the_loss_scale_is_determined_in_each_backward() -> None:
    engine = Engine(8.0, 8.0, steps=1)
    scale = LossScale(engine)
    engine.backward(torch.ones((), requires_grad=True) * 1.0)
    assert scale.value == 8.0
    engine.applied = 1.0

    engine.backward(torch.ones((), requires_grad=True) * 1.0)

    assert scale.value == 1.0
