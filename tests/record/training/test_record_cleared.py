"""The calls of `zero_grad` are recorded: when in a step, at which line, and what they leave out."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.trace.events import decoder, fault_of
from pytest_trainsafe.trace.facts import Zeroed

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def train(where: str) -> Any:
    """Two steps of two micro-batches that call `zero_grad` at one place, or nowhere."""

    def run(ctx: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).to(ctx.dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        for _ in range(2):
            if where == "between":
                model.zero_grad()
            with ctx.step():
                for index in ctx.microbatches(2):
                    with ctx.microbatch(index):
                        model(X.to(ctx.dtype)).square().sum().backward()
                        if where == "backward":
                            optimizer.zero_grad()
                optimizer.step()
                if where == "stepped":
                    optimizer.zero_grad()
                if where == "some":
                    model[0].zero_grad()

    return run


def calls(run: Any) -> list[Zeroed]:
    return run.rank.events_of(Zeroed)


@pytest.mark.parametrize(
    ("where", "moments"),
    [
        ("between", [(0, "before"), (1, "before")]),
        ("backward", [(0, "backward")] * 2 + [(1, "backward")] * 2),
        ("stepped", [(0, "stepped"), (1, "stepped")]),
        ("nowhere", []),
    ],
)
def test_a_call_of_zero_grad_is_recorded_with_its_moment_and_line(
    record: Any, where: str, moments: list[tuple[int, str]]
) -> None:
    found = calls(record(train(where)))
    assert [(each.step, each.moment) for each in found] == moments
    for each in found:
        file, _, line = each.at.rpartition(":")
        assert linecache.getline(file, int(line)).strip().endswith(".zero_grad()")
        assert each.left == 0


def test_the_parameters_that_a_call_does_not_concern_are_named(record: Any) -> None:
    found = calls(record(train("some")))
    assert [each.kept for each in found] == [("1.weight", "1.bias")] * 2
    assert [each.left for each in found] == [2, 2]


def test_the_methods_are_restored(record: Any) -> None:
    before = torch.optim.Optimizer.zero_grad, nn.Module.zero_grad
    record(train("stepped"))
    assert (torch.optim.Optimizer.zero_grad, nn.Module.zero_grad) == before


def test_a_malformed_call_is_refused() -> None:
    text = '{"type":"zeroed","step":0,"moment":"before","at":"nowhere"}'
    assert "is not a line of a file" in fault_of(decoder().decode(text))
