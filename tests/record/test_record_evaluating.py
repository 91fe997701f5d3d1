"""Draws between steps are an evaluation only if a part leaves the mode in which it trains."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

from pytest_trainsafe.trace.rng.events import DrawEvent
from pytest_trainsafe.trace.rng.ledger import ledger


def net():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def frozen_teacher():
    return net().requires_grad_(False).eval()


@contextmanager
def evaluating(model):
    """Evaluates a model, and puts it back into training mode."""
    model.eval()
    yield
    model.train()


def phases(record, parts, *around):
    """The phases of draws before the first step and between steps: one in each context."""

    def train(ctx):
        parameters = [p for part in parts.values() for p in part.parameters() if p.requires_grad]
        ctx.watch(parts, torch.optim.SGD(parameters, lr=0.1))
        for context in around:
            with context:
                torch.rand(1)
            with ctx.step(), ctx.microbatch(0):
                sum(part(torch.ones(4, 2)).sum() for part in parts.values()).backward()

    events = [e for e in ledger(record(train).rank) if isinstance(e, DrawEvent)]
    return [event.phase for event in events]


@pytest.mark.parametrize("around", [nullcontext, torch.no_grad], ids=["", "no-grad"])
def test_draws_beside_a_frozen_teacher_in_evaluation_mode_are_data(record, around):
    parts = {"student": net(), "teacher": frozen_teacher()}

    assert phases(record, parts, around(), around()) == ["data", "data"]


def test_draws_while_the_student_of_a_frozen_teacher_evaluates_are_an_evaluation(record):
    parts = {"student": net(), "teacher": frozen_teacher()}

    found = phases(record, parts, nullcontext(), evaluating(parts["student"]))

    assert found == ["data", "evaluation"]


def test_draws_between_steps_of_a_model_that_trains_in_evaluation_mode_are_data(record):
    found = phases(record, {"m": net().eval()}, nullcontext(), nullcontext(), torch.no_grad())

    assert found == ["data", "data", "data"]


def test_draws_of_an_evaluation_without_gradients_before_the_first_step_are_an_evaluation(record):
    model = net()

    @contextmanager
    def without_gradients():
        with torch.no_grad(), evaluating(model):
            yield

    assert phases(record, {"m": model}, without_gradients()) == ["evaluation"]
