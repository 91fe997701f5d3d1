"""Every tensor in an output has a unique key path, whatever the containers and their keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.hooks.outputs import replace_tensors, tensors_in

A, B = torch.ones(2), torch.zeros(3)


def inside_itself(make: Callable[[], Any], put: Callable[[Any, Any], None]) -> Any:
    value = make()
    put(value, value)
    return value


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ({1: A, "1": B}, ["output.1", "output.1#1"]),
        ({"a.b": A, "a": {"b": B}}, ["output.a.b", "output.a.b#1"]),
        ({"": A, None: B}, ["output.", "output.None"]),
        ([A, [A]], ["output.0", "output.1.0"]),
        (inside_itself(lambda: [A], list.append), ["output.0"]),
        (inside_itself(lambda: {"x": A}, lambda d, e: d.update(y=[e])), ["output.x"]),
        ([[A], [A]], ["output.0.0", "output.1.0"]),
    ],
    ids=["1 and '1'", "dots", "odd keys", "twice", "list in itself", "dict in itself", "shared"],
)
def test_key_paths_are_unique_even_in_containers_that_contain_themselves(
    value: Any, places: list[str]
) -> None:
    assert [place for place, _ in tensors_in(value)] == places
    replaced = replace_tensors(value, lambda _, tensor: tensor + 1)
    assert type(replaced) is type(value)


def test_tensors_under_keys_with_the_same_text_are_recorded_separately(record: Any) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> dict[Any, Tensor]:
            return {0: x * 2, "0": x * 3}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.odd = nn.Linear(3, 5), Odd()

        def forward(self, x: Tensor) -> Tensor:
            out = self.odd(self.fc(x))
            return out[0] + out["0"].square()

    model = Model()

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(torch.ones(4, 3)).sum().backward()

    run = record(train)
    y = model.fc(torch.ones(4, 3)).detach()
    assert torch.equal(run.get("activation", "odd.output.0"), y * 2)
    assert torch.equal(run.get("activation", "odd.output.0#1"), y * 3)
    assert torch.equal(run.get("activation_grad", "odd.output.0#1"), y * 6)
