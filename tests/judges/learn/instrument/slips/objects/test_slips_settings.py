"""Slips in the settings of optimizers are noticed."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps


@pytest.mark.parametrize(
    ("betas", "slips"),
    [((0.9, 0.999), []), ((0.9, 0.9), []), ((0.0, 0.9), []), ((0.999, 0.9), ["betas-swapped"])],
)
def test_the_order_of_betas(betas: tuple[float, float], slips: list[str]) -> None:
    def program() -> None:
        model = net()
        steps(model, torch.optim.AdamW(model.parameters(), 0.01, betas), 2)

    assert slips_of(program) == slips


@pytest.mark.parametrize(
    ("shared", "order", "slips"),
    [(True, "abab", ["held-twice"]), (True, "aabb", []), (False, "abab", [])],
)
def test_parameters_of_two_optimizers(shared: bool, order: str, slips: list[str]) -> None:
    """One optimizer after another is a second phase of the training."""

    def program() -> None:
        models = {"a": net(), "b": net()}
        more = models["a"].parameters() if shared else iter(())
        both = itertools.chain(models["b"].parameters(), more)
        optimizers = {"a": sgd(models["a"]), "b": torch.optim.SGD(both, lr=0.1)}
        for each in order:
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            (loss_of(models["a"]) + loss_of(models["b"])).backward()
            optimizers[each].step()

    assert slips_of(program) == slips


@pytest.mark.parametrize(
    ("dtype", "scaled", "slips"),
    [
        (torch.float16, False, ["half-unscaled"]),
        (torch.float16, True, []),
        (torch.bfloat16, False, []),
    ],
)
def test_autocast_without_a_scaler(dtype: torch.dtype, scaled: bool, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", enabled=scaled)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = loss_of(model)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    assert slips_of(program) == slips
