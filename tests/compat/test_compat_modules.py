"""What a module holds itself, the code that calls it, and what kind of module it is."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.compat import modules
from pytest_trainsafe.compat.private import lacking


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
        self.b = self.a
        self.c = None
        self.register_parameter("d", None)
        self.register_buffer("mask", torch.ones(1))
        self.inner = nn.Linear(1, 1)
        self.called_by: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            self.called_by.append(frame.f_code)
            frame = frame.f_back
        return x


def test_what_a_module_holds_twice_or_as_none_is_there_and_what_its_parts_hold_is_not() -> None:
    model = Model()
    assert dict(modules.own_parameters(model)) == {"a": model.a, "b": model.a, "d": None}
    assert dict(modules.own_buffers(model)) == {"mask": model.mask}
    assert dict(modules.children_of(model)) == {"inner": model.inner}


def test_the_code_of_a_call_is_on_the_stack_of_a_forward() -> None:
    model = Model()
    model(torch.ones(1))
    assert model.called_by.count(modules.CALL) == 1


def test_batch_norms_and_dropouts_of_any_dimension_are_known() -> None:
    norms = nn.BatchNorm1d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2)
    assert all(map(modules.is_batch_norm, norms))
    assert not modules.is_batch_norm(nn.LayerNorm(2))
    assert modules.dropout_of(nn.Dropout(0.25)) == modules.dropout_of(nn.AlphaDropout(0.25)) == 0.25
    assert modules.dropout_of(nn.Linear(1, 1)) is None


def test_without_its_names_no_call_and_no_kind_is_known_and_modules_run(without: Any) -> None:
    copy = without("modules")
    assert copy.CALL is None
    assert not copy.is_batch_norm(nn.BatchNorm1d(2))
    assert copy.dropout_of(nn.Dropout(0.25)) is None
    assert copy.own_parameters(nn.Linear(1, 1)).keys() == {"weight", "bias"}
    assert len(lacking()) == 2


def test_without_the_dict_a_module_holds_nothing(without: Any) -> None:
    copy = without("modules", "none")
    model = nn.Linear(1, 1)
    del model.__dict__["_buffers"]
    assert copy.own_buffers(model) == {}
    [why] = lacking()
    assert why.startswith("what a module holds itself is not seen: torch ")
    assert why.endswith(" has no Module._buffers")
