"""Where torch lacks a private name, the trace says what is off, and the rest is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.compat import private
from pytest_trainsafe.compat.private import Capability
from pytest_trainsafe.record import clock

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def train(ctx: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(ctx.dtype)
    ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with ctx.step(), ctx.microbatch(0):
        x = X.to(ctx.dtype).requires_grad_()
        checkpoint(model, x, use_reentrant=True).sum().backward()


def test_a_run_notes_what_is_off_for_lack_of_a_name(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "_declared", [])
    assert record(train).rank.note("not_compared") == []
    made = Capability("writes are not noticed")
    made.of("torch", "Tensor._no_such_name")
    assert record(train).rank.note("not_compared") == [made.why]


def test_without_the_numbers_of_nodes_a_program_that_recomputes_is_recorded(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = record(train)
    monkeypatch.setattr(clock, "running_node", lambda: None)
    monkeypatch.setattr(clock, "nodes_made", lambda: 0)
    found = record(train)
    for name in ("0.weight", "0.bias"):
        gradients = (run.get("param_grad", name) for run in (expected, found))
        assert torch.equal(*gradients)
