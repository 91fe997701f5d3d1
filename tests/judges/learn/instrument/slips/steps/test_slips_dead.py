"""A training in which no parameter ever has a gradient but zero is noticed."""

from __future__ import annotations

import pytest
import torch

from tests.support.learn.slips import net, sgd, slips_of


@pytest.mark.parametrize(("kind", "wrong"), [("never", True), ("later", False), ("always", False)])
def test_gradients_that_are_all_zero(kind: str, wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for step in range(12):
            optimizer.zero_grad()
            out = model(torch.randn(8, 4))
            live = kind == "always" or (kind == "later" and step > 9)
            ((out - out.detach()).square().mean() + live * out.square().mean()).backward()
            optimizer.step()

    assert slips_of(program) == ["gradient-always-zero"] * wrong
