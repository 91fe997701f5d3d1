"""Weights that were pruned, and that momentum moves again, are noticed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.learn.slips import net, slips_of, steps


@pytest.mark.parametrize(
    ("momentum", "again", "wrong"), [(0.9, False, True), (0.9, True, False), (0.0, False, False)]
)
def test_pruned_weights_that_a_step_moves(momentum: float, again: bool, wrong: bool) -> None:
    def program() -> None:
        model = net(width=16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        steps(model, optimizer, 3)
        matrices = [each for each in model.parameters() if each.dim() > 1]
        kept = [torch.arange(each.numel()).view(each.shape) % 2 == 0 for each in matrices]

        def prune() -> None:
            with torch.no_grad():
                for each, mask in zip(matrices, kept, strict=True):
                    each.mul_(mask)

        prune()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            for each, mask in zip(matrices, kept, strict=True):
                assert each.grad is not None
                each.grad.mul_(mask)
            optimizer.step()
            if again:
                prune()

    assert slips_of(program) == ["zeros-revived"] * wrong


def test_rows_that_were_not_looked_up_yet() -> None:
    def program() -> None:
        table = nn.Embedding(30, 4)
        nn.init.zeros_(table.weight)
        optimizer = torch.optim.Adam(table.parameters(), lr=0.1, weight_decay=0.1)
        for step in range(4):
            optimizer.zero_grad()
            rows = torch.arange(5) + 5 * step
            (table(rows) - 1).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == []
