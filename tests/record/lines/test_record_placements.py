"""The program's line that registers each module is recorded, not a line of a constructor."""

from __future__ import annotations

import linecache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torchs

from pytest_trainsafe.trace.facts import SetUp


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Inner() for _ in range(2)])
        self._add_the_last()

    def _add_the_last(self) -> None:
        self.last = nn.Sequential(nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.parts[1](self.parts[0](x)))


def placed(record: Any, change: Any = None) -> dict[str, str]:
    """The source of the recorded line of each module, after `change` has changed an Outer."""

    def train(ctx: Any) -> None:
        model = Outer()
        if change is not None:
            change(model)
        model.to(ctx.dtype)
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model.late = nn.Identity()  # after ctx.watch, so not recorded
        with ctx.step(), ctx.microbatch(0):
            model(torch.ones(2, 3, dtype=ctx.dtype)).sum().backward()

    found = {}
    for event in record(train).rank.events_of(SetUp):
        file, _, line = event.at.rpartition(":")
        found[event.module] = linecache.getline(file, int(line)).strip()
    return found


def test_submodules_have_the_line_that_constructs_the_outermost_module(record: Any) -> None:
    modules = ["parts", "parts.0", "parts.0.fc", "parts.1", "parts.1.fc", "last", "last.0"]
    assert placed(record) == dict.fromkeys(modules, "model = Outer()")


def test_a_replaced_module_has_the_line_of_the_replacement(record: Any) -> None:
    def change(model: Any) -> None:
        model.parts[1].fc = nn.Linear(3, 3, bias=False)
        model.last.add_module("0", Inner())

    found = placed(record, change)
    assert found["parts.1.fc"] == "model.parts[1].fc = nn.Linear(3, 3, bias=False)"
    assert found["parts.0.fc"] == found["parts.1"] == "model = Outer()"
    assert found["last.0"] == found["last.0.fc"] == 'model.last.add_module("0", Inner())'


def test_a_moved_module_has_the_line_that_moves_it(record: Any) -> None:
    def change(model: Any) -> None:
        model.last, model.parts[0] = model.parts[0], nn.Identity()

    found = placed(record, change)
    assert found["last"] == "model.last, model.parts[0] = model.parts[0], nn.Identity()"
    assert found["last.fc"] == "model = Outer()"


def test_no_line_is_recorded_for_a_module_set_in_the_modules_dict_directly(record: Any) -> None:
    def change(model: Any) -> None:
        model.parts[0]._modules["fc"] = nn.Linear(3, 3)

    assert "parts.0.fc" not in placed(record, change)


def test_module_registration_hooks_are_removed_after_a_run(record: Any) -> None:
    before = dict(torchs._global_module_registration_hooks)
    placed(record)
    assert dict(torchs._global_module_registration_hooks) == before


def test_the_innermost_line_in_the_programs_constructors_is_recorded_too(record: Any) -> None:
    def train(ctx: Any) -> None:
        model = Outer().to(ctx.dtype)
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with ctx.step(), ctx.microbatch(0):
            model(torch.ones(2, 3, dtype=ctx.dtype)).sum().backward()

    found = {}
    for event in record(train).rank.events_of(SetUp):
        file, _, line = event.inside.rpartition(":")
        found[event.module] = linecache.getline(file, int(line)).strip()
    assert found["parts.0"] == "self.parts = nn.ModuleList([Inner() for _ in range(2)])"
    assert found["parts.1.fc"] == "self.fc = nn.Linear(3, 3)"
    assert found["last"] == "self.last = nn.Sequential(nn.Linear(3, 3))"
