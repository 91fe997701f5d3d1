"""Slips in what steps do to weights are noticed, and not in programs without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.learn.slips import net, sgd, slips_of, steps


@pytest.mark.parametrize(
    ("dtype", "rate", "slips"),
    [
        (torch.bfloat16, 1e-6, ["updates-rounded"]),
        (torch.float32, 1e-6, []),
        (torch.bfloat16, 0.3, []),
    ],
)
def test_updates_that_are_rounded_away(dtype: torch.dtype, rate: float, slips: list[str]) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4, dtype=dtype)).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == slips


@pytest.mark.parametrize(("eps", "wrong"), [(1e-8, True), (1e-4, False)])
def test_an_eps_that_float16_rounds_to_zero(eps: float, wrong: bool) -> None:
    def program() -> None:
        model = nn.Linear(4, 2).half()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=eps)
        model(torch.randn(8, 4).half()).square().mean().backward()
        optimizer.step()

    assert slips_of(program) == ["eps-vanishes"] * wrong


@pytest.mark.parametrize(
    ("factor", "slips"),
    [
        (lambda step: step // 10, ["rate-zero"]),
        (lambda step: step / 10, []),
    ],
)
def test_a_rate_that_stays_zero(factor: object, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)  # type: ignore[arg-type]
        for _ in range(4):
            steps(model, optimizer)
            schedule.step()

    assert slips_of(program) == slips


@pytest.mark.parametrize("kind", ["merged", "each its own", "scheduled"])
def test_rates_of_groups_that_are_set_by_hand(kind: str) -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.SGD(
            [
                {"params": model[0].parameters(), "lr": 0.01},
                {"params": model[3].parameters(), "lr": 0.1},
            ]
        )
        if kind == "scheduled":
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        for step in range(3):
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] / 2 if kind == "each its own" else 0.1 * (step + 1) / 3
            steps(model, optimizer)

    assert ("rates-merged" in slips_of(program)) == (kind == "merged")
