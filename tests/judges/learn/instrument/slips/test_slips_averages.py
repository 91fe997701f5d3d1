"""Averages that follow the weights too closely, or have the statistics of others, are noticed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.support.learn.slips import net, sgd, slips_of, steps


@pytest.mark.parametrize(
    ("decay", "wrong"), [(0.001, True), (0.999, False), (0.5, False), (0.0, False)]
)
def test_an_average_whose_decay_is_inverted(decay: float, wrong: bool) -> None:
    def program() -> None:
        model = net()
        average = copy.deepcopy(model).requires_grad_(False).eval()
        optimizer = sgd(model)
        for _ in range(8):
            steps(model, optimizer)
            for slow, quick in zip(average.parameters(), model.parameters(), strict=True):
                slow.data.mul_(decay).add_(quick.detach(), alpha=1 - decay)
            with torch.no_grad():
                average(torch.randn(8, 4))

    assert slips_of(program) == ["average-follows"] * wrong


@pytest.mark.parametrize("kind", ["swa", "swa and update_bn", "ema", "with buffers"])
def test_an_average_with_the_statistics_of_the_last_weights(kind: str) -> None:
    def program() -> None:
        model = net(norm=True)
        optimizer = sgd(model)
        average = AveragedModel(
            model,
            multi_avg_fn=get_ema_multi_avg_fn(0.9) if kind == "ema" else None,
            use_buffers=kind == "with buffers",
        )
        for _ in range(4):
            steps(model, optimizer)
            average.update_parameters(model)
        if kind == "swa and update_bn":
            update_bn([torch.randn(8, 4) for _ in range(3)], average)
        average.eval()
        with torch.no_grad():
            average(torch.randn(8, 4))

    assert slips_of(program) == ["average-lacks-buffers"] * (kind == "swa")


@pytest.mark.parametrize(
    ("dtype", "use", "wrong"),
    [
        (torch.bfloat16, torch.float32, True),
        (torch.float32, torch.float32, False),
        (torch.float32, torch.bfloat16, False),
    ],
)
def test_an_average_that_rounding_keeps_from_moving(
    dtype: torch.dtype, use: torch.dtype, wrong: bool
) -> None:
    def program() -> None:
        model = net(16)
        average = [each.detach().clone().to(dtype) for each in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(12):
            steps(model, optimizer)
            for slow, quick in zip(average, model.parameters(), strict=True):
                slow.sub_(0.005 * (slow - quick.detach().to(dtype)))
            if step % 4 == 3:
                copied = copy.deepcopy(model).to(use)
                for each, slow in zip(copied.parameters(), average, strict=True):
                    each.data.copy_(slow)
                with torch.no_grad():
                    copied(torch.randn(8, 4, dtype=use))

    assert slips_of(program) == ["average-rounded"] * wrong
