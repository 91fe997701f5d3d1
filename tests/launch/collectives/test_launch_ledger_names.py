"""Tensors have names in the ledger, by their memory: also a buffer that begins with a named one."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.launch.collectives import ledger
from pytest_trainsafe.launch.collectives.ledger import AND_MORE, name_tensor
from pytest_trainsafe.record.tensors import name_gradients

name_of = ledger._name_of


@pytest.fixture(autouse=True)
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_names", {})


def test_a_tensor_views_of_it_and_a_buffer_that_begins_with_it_have_its_name() -> None:
    buffer = torch.zeros(10)
    gradient = buffer[:6].view(2, 3)
    name_tensor(gradient, "w.grad")

    assert name_of(gradient) == name_of(buffer[:6]) == "w.grad"
    assert name_of(buffer) == f"w.grad{AND_MORE}"
    for other in (buffer[:5], buffer[2:], buffer.clone(), torch.zeros(20, 10)[::2]):
        assert name_of(other) == ""


def test_a_name_is_forgotten_with_its_tensor() -> None:
    buffer = torch.zeros(10)
    gradient = buffer[:6]
    name_tensor(gradient, "w.grad")
    del gradient

    assert name_of(buffer) == ""


def test_the_gradients_of_a_parameter_are_named_also_its_main_gradient_in_a_bucket() -> None:
    bucket = torch.zeros(8)
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.main_grad = bucket[:4]  # type: ignore[attr-defined]
    name_gradients(parameter, "w")

    assert name_of(bucket) == f"w.grad{AND_MORE}"
    parameter.sum().backward()
    assert parameter.grad is not None
    assert name_of(parameter.grad) == "w.grad"
