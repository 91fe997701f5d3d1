"""A scaler that is updated between the steps of optimizers that share one loss is noticed."""

from __future__ import annotations

import pytest
import torch

from tests.support.learn.slips import slips_of
from tests.support.learn.two_optimizers import scaled


@pytest.mark.parametrize("kind", ["after both", "between", "in turn", "early"])
def test_a_scaler_that_is_updated_between_the_steps(kind: str) -> None:
    assert slips_of(lambda: scaled(kind)) == ["scale-updated"] * (kind == "between")


def test_a_scaler_that_is_turned_off_has_no_scale() -> None:
    assert slips_of(lambda: scaled("between", enabled=False)) == []


def test_two_scalers_are_not_taken_for_one() -> None:
    def program() -> None:
        models = [torch.nn.Linear(4, 2) for _ in range(2)]
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
        scalers = [torch.amp.GradScaler("cpu", init_scale=4.0) for _ in models]
        for _ in range(3):
            for model, scaler in zip(models, scalers, strict=True):
                model.zero_grad()
                scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
            for optimizer, scaler in zip(optimizers, scalers, strict=True):
                scaler.step(optimizer)
                scaler.update()

    assert slips_of(program) == []
