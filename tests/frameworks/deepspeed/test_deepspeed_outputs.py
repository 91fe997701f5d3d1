"""Gradients of a model's output are recorded as its backward has them, after the engine's hooks."""

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
    """A dict of a class of its own, as those of transformers."""


class Model(nn.Module):
    """Returns its output in some structure."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1, bias=False)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.linear(x).sum())


def gradients(model: Model, pick: Callable[[Any], torch.Tensor], *, separate: bool) -> list[float]:
    """What a hook of the recorder sees of the output's gradient, and the weight's gradient.

    The engine divides the gradient of what the model returns by 4 in a hook, as 0.18.3 does.
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
def test_the_gradient_is_the_one_after_the_engine_divided_it(
    wrap: Callable[[torch.Tensor], Any], pick: Callable[[Any], torch.Tensor]
) -> None:
    assert gradients(Model(wrap), pick, separate=True) == [0.25, 0.25]


def test_on_the_same_tensor_it_would_be_the_one_before() -> None:
    _, wrap, pick = STRUCTURES[0]

    assert gradients(Model(wrap), pick, separate=False) == [1.0, 0.25]


@pytest.mark.parametrize("wrap", [e[1] for e in STRUCTURES], ids=NAMES)
def test_what_the_model_returns_keeps_its_class_and_its_values(
    wrap: Callable[[torch.Tensor], Any],
) -> None:
    model = Model(wrap)
    before = model(torch.ones(1, 2))
    separate_outputs(SimpleNamespace(module=model))

    after = model(torch.ones(1, 2))

    assert type(after) is type(before)
    assert str(after) == str(before).replace("SumBackward0", "CloneBackward0")
