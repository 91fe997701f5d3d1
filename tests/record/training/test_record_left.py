"""What a program leaves to later steps is recorded: weights, other tensors, and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.facts import Counted

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Model(nn.Module):
    """A layer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.calls, self.rate, self.training_name = 0, 0.5, "model"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x)


def trained(
    record: Any,
    after: Callable[[Model], object] = lambda model: None,
    others: tuple[nn.Parameter, ...] = (),
    add: Callable[[Model], object] = lambda model: None,
) -> Any:
    """One step; `add` changes the model after ctx.watch, and `after` after the step."""
    model = Model()
    optimizer = torch.optim.SGD([*model.parameters(), *others], lr=0.1)

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        add(model)
        with ctx.step(), ctx.microbatch(0):
            model(X).square().sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        after(model)

    return record(train).trace.ranks[0]


def change(model: Model) -> None:
    with torch.no_grad():
        model.layer.bias.clamp_(0.01, 0.02)


def test_a_clean_program_leaves_no_note(record: Any) -> None:
    assert trained(record).note("not_compared") == []


def test_weights_that_change_after_the_last_step_are_noted(record: Any) -> None:
    [note] = trained(record, change).note("not_compared")

    assert note.startswith("what changes the weights after the last step (layer.bias)")


def test_a_change_through_data_is_noted(record: Any) -> None:
    [note] = trained(record, lambda model: model.layer.weight.data.mul_(2)).note("not_compared")

    assert "(layer.weight)" in note


def test_a_model_that_is_converted_for_its_export_is_not_noted(record: Any) -> None:
    assert trained(record, lambda model: model.half()).note("not_compared") == []


def test_a_tensor_of_the_optimizer_that_is_no_parameter_is_noted(record: Any) -> None:
    [note] = trained(record, others=(nn.Parameter(torch.ones(2)),)).note("not_compared")

    assert (
        "that SGD updates and that are no parameters of the watched model (of shape (2,))" in note
    )


def test_a_layer_that_is_replaced_after_the_model_is_watched_is_noted(record: Any) -> None:
    def replace(model: Model) -> None:
        model.layer = nn.Linear(3, 3)

    notes = trained(record, add=replace).note("not_compared")

    assert any("got after ctx.watch (layer.weight, layer.bias)" in note for note in notes)


def test_numbers_that_change_are_recorded_by_their_owner(record: Any) -> None:
    assert trained(record).events_of(Counted) == [Counted("model", {"calls": "1.0"})]
