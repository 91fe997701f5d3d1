"""Localisation Runs record the lines that compute inputs, outputs and the loss."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.record.lines.origins import Origins
from pytest_trainsafe.trace.facts import Made
from pytest_trainsafe.trace.run_spec import Rewrite
from pytest_trainsafe.trace.writer import RankWriter

REWRITE = {"activation fc.output 0": Rewrite((4, 2), 0.0, 1.0)}


def rolled(x: Tensor) -> Tensor:
    return torch.roll(x, 1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.roll = nn.Linear(3, 2), Roll()

    def forward(self, x: Tensor) -> Tensor:
        return self.roll(self.fc(x))


class Roll(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return rolled(x)


class Loss(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().sum()


def batch(dtype: torch.dtype) -> Tensor:
    return torch.ones(4, 3).to(dtype)


def objective(losses: Tensor) -> Tensor:
    return losses.square().sum() / 4


def training(model: Any = Model, loss: Any = objective) -> Any:
    def train(ctx: Any) -> None:
        watched = model().to(ctx.dtype)
        ctx.watch(watched, torch.optim.SGD(watched.parameters(), lr=0.1))
        for _ in range(2):
            with ctx.step(), ctx.microbatch(0):
                inputs = batch(ctx.dtype)
                loss(watched(inputs.to(ctx.dtype))).backward()

    return train


def made(run: Any) -> dict[tuple[str, str], str]:
    """The source of each recorded line, by what the line computes."""
    found = {}
    for event in run.rank.events_of(Made):
        file, _, line = event.at.rpartition(":")
        found[event.what, event.name] = linecache.getline(file, int(line)).strip()
    return found


def test_the_innermost_lines_that_compute_inputs_outputs_and_loss_are_recorded(record: Any) -> None:
    assert made(record(training(), dtype="float64", rewrite=REWRITE)) == {
        ("input", "input.0"): "return torch.ones(4, 3).to(dtype)",
        ("output", "fc"): "return self.roll(self.fc(x))",
        ("output", "roll"): "return torch.roll(x, 1)",
        ("loss", ""): "return losses.square().sum() / 4",
    }


def scaled(losses: Tensor) -> Tensor:
    count = torch.tensor(float(losses.numel()))
    total = losses.square().sum()
    return total / count


def test_the_lines_of_what_the_loss_is_computed_from_are_recorded_the_nearest_first(
    record: Any,
) -> None:
    run = record(training(loss=scaled), dtype="float64", rewrite=REWRITE)
    event = next(each for each in run.rank.events_of(Made) if each.what == "loss")
    lines = [line.rpartition(":") for line in (event.at, *event.of)]
    assert [linecache.getline(file, int(line)).strip() for file, _, line in lines] == [
        "return total / count",
        "total = losses.square().sum()",
        "count = torch.tensor(float(losses.numel()))",
    ]
    inputs = (each for each in run.rank.events_of(Made) if each.what != "loss")
    assert not any(each.of for each in inputs)


def labelled(losses: Tensor, labels: Tensor) -> Tensor:
    errors = losses - labels
    return errors.square().sum()


def test_lines_that_make_the_batch_are_not_among_those_of_the_loss(record: Any) -> None:
    def train(ctx: Any) -> None:
        watched = Model().to(ctx.dtype)
        ctx.watch(watched, torch.optim.SGD(watched.parameters(), lr=0.1))
        for _ in range(2):
            with ctx.step(), ctx.microbatch(0):
                inputs = batch(ctx.dtype)
                labels = torch.ones(4, 2, dtype=ctx.dtype)
                labelled(watched(inputs), labels).backward()

    run = record(train, dtype="float64", rewrite=REWRITE)
    event = next(each for each in run.rank.events_of(Made) if each.what == "loss")
    lines = [line.rpartition(":") for line in event.of]
    assert [linecache.getline(file, int(line)).strip() for file, _, line in lines] == [
        "errors = losses - labels"
    ]


def test_no_line_is_recorded_for_a_loss_that_the_model_returns(record: Any) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 2), Loss())

    run = record(training(model, lambda loss: loss), rewrite=REWRITE)
    assert not any(what == "loss" for what, _ in made(run))


def test_no_line_is_recorded_for_an_output_that_a_submodule_computed(record: Any) -> None:
    assert ("output", "") not in made(record(training(), rewrite=REWRITE))


def test_runs_without_rewrite_and_trusted_or_compiled_runs_record_no_lines(record: Any) -> None:
    assert made(record(training())) == {}
    assert made(record(training(), rewrite=REWRITE, trusted=True)) == {}
    assert made(record(training(), rewrite=REWRITE, point={"compile": True})) == {}


def test_a_replaced_tensor_method_is_called_only_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch passes the replacement to the mode, although the replacement is already running."""
    original = torch.Tensor.type
    monkeypatch.setattr(torch.Tensor, "type", lambda self: f"cuda.{original(self)}")
    values = torch.ones(2)

    with Origins(RankWriter(tmp_path, 0)):
        named = values.type()

    assert named == values.type() == "cuda.torch.FloatTensor"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_line_of_the_loss_is_recorded_once_though_backward_is_replaced(
    monkeypatch: pytest.MonkeyPatch, record: Any, length: int
) -> None:
    calls: list[int] = []
    for number in range(length):

        def backward(
            loss: Tensor, *args: Any, _called: Any = torch.Tensor.backward, _number: int = number
        ) -> None:
            calls.append(_number)
            _called(loss, *args)

        monkeypatch.setattr(torch.Tensor, "backward", backward)

    run = record(training(), dtype="float64", rewrite=REWRITE)

    assert made(run)["loss", ""] == "return losses.square().sum() / 4"
    assert calls == 2 * [*reversed(range(length))]  # two steps
