"""The recorded gradient of a model's output is the one after DeepSpeed's hooks have divided it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_trainsafe.frameworks.deepspeed.engine import separate_outputs


class Pair(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


class Output(OrderedDict[str, Any]):
    """A subclass of OrderedDict, like the outputs of transformers models."""


class Model(nn.Module):
    """Returns its loss in the structure that `wrap` makes."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1, bias=False)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.linear(x).sum())


def gradients(model: Model, pick: Callable[[Any], torch.Tensor], *, separate: bool) -> list[float]:
    """The output's gradient as a recorder's hook sees it, and the weight's gradient.

    A hook on the model's output divides the gradient by 4, as the engine of DeepSpeed 0.18.3 does.
    """
    seen: list[float] = []

    def record(_module: nn.Module, _inputs: object, output: Any) -> None:
        pick(output).register_hook(lambda grad: seen.append(float(grad)))

    model.register_forward_hook(record)
    if separate:
        separate_outputs(SimpleNamespace(module=model))
    loss = pick(model(torch.ones(1, 2)))
    loss.register_hook(lambda grad: grad / 4)
    loss.backward()
    assert model.linear.weight.grad is not None
    return [*seen, float(model.linear.weight.grad[0, 0])]


STRUCTURES: list[tuple[str, Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = [
    ("tensor", lambda loss: loss, lambda output: output),
    ("tuple", lambda loss: (None, loss), lambda output: output[1]),
    ("list", lambda loss: [{"loss": loss}], lambda output: output[0]["loss"]),
    ("named tuple", lambda loss: Pair(loss, loss), lambda output: output.loss),
    ("own dict", lambda loss: Output(loss=loss, other=3), lambda output: output["loss"]),
]
NAMES = [each[0] for each in STRUCTURES]


@pytest.mark.parametrize(("wrap", "pick"), [e[1:] for e in STRUCTURES], ids=NAMES)
def test_a_hook_on_a_separated_output_sees_the_gradient_that_the_engine_divided(
    wrap: Callable[[torch.Tensor], Any], pick: Callable[[Any], torch.Tensor]
) -> None:
    assert gradients(Model(wrap), pick, separate=True) == [0.25, 0.25]


def test_without_separate_outputs_a_hook_sees_the_gradient_before_the_division() -> None:
    _, wrap, pick = STRUCTURES[0]

    assert gradients(Model(wrap), pick, separate=False) == [1.0, 0.25]


@pytest.mark.parametrize("wrap", [e[1] for e in STRUCTURES], ids=NAMES)
def test_separate_outputs_keeps_the_class_and_the_values_of_the_models_output(
    wrap: Callable[[torch.Tensor], Any],
) -> None:
    model = Model(wrap)
    before = model(torch.ones(1, 2))
    separate_outputs(SimpleNamespace(module=model))

    after = model(torch.ones(1, 2))

    assert type(after) is type(before)
    assert str(after) == str(before).replace("SumBackward0", "CloneBackward0")
