"""Modes of torch's dispatcher see operators, are hidden from some, and have an order."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_trainsafe.compat import dispatch_modes
from pytest_trainsafe.compat.private import lacking

UNCOMPILED = """
import sys
import torch
from pytest_trainsafe.compat.dispatch_modes import CompilableMode

class Mode(CompilableMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

with Mode():
    torch.ones(2) + 1
print("torch._dynamo" in sys.modules)
"""


class Seeing(dispatch_modes.TorchDispatchMode):
    """Notes its name at each operator that it sees."""

    def __init__(self, name: str, seen: list[str]) -> None:
        super().__init__()
        self.name, self.seen = name, seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(self.name)
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_operators_and_is_counted_while_it_is_active() -> None:
    seen: list[str] = []
    x = torch.ones(2)
    assert dispatch_modes.modes_active() == 0
    with Seeing("a", seen):
        assert dispatch_modes.modes_active() == 1
        x + 1
    assert dispatch_modes.modes_active() == 0
    assert seen == ["a"]


def test_operators_of_a_context_are_hidden_from_all_modes() -> None:
    seen: list[str] = []
    x = torch.ones(2)
    with Seeing("a", seen), Seeing("b", seen), dispatch_modes.without_modes():
        x + 1
    with dispatch_modes.without_modes():
        x + 1
    assert seen == []


def test_modes_that_were_hidden_see_again_in_their_order_also_after_an_error() -> None:
    seen: list[str] = []
    x = torch.ones(2)
    with Seeing("a", seen), Seeing("b", seen):
        with contextlib.suppress(ValueError), dispatch_modes.without_modes():
            assert dispatch_modes.modes_active() == 0
            raise ValueError
        x + 1
    assert seen == ["b", "a"]
    with FakeTensorMode(), Seeing("c", seen):
        with dispatch_modes.without_modes():
            assert dispatch_modes.modes_active() == 0
        assert dispatch_modes.on_fake_tensors()
        assert dispatch_modes.modes_active() == 2


def test_the_innermost_mode_receives_an_operator_after_those_of_the_program() -> None:
    seen: list[str] = []
    x = torch.ones(2)
    with Seeing("a", seen), Seeing("b", seen):
        with dispatch_modes.innermost(Seeing("own", seen)):
            x + 1
        assert seen == ["b", "a", "own"]
        seen.clear()
        x + 1
    assert seen == ["b", "a"]
    assert dispatch_modes.modes_active() == 0


def test_fake_tensors_are_recognised_and_then_no_mode_is_entered() -> None:
    seen: list[str] = []
    assert not dispatch_modes.on_fake_tensors()
    with FakeTensorMode():
        assert dispatch_modes.on_fake_tensors()
        with dispatch_modes.innermost(Seeing("own", seen)):
            torch.ones(2)
    assert seen == []


def test_a_compilable_mode_does_not_import_the_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNCOMPILED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_without_modes_nothing_is_seen_and_programs_run(without: Any) -> None:
    copy = without("dispatch_modes", "torch.utils._python_dispatch.TorchDispatchMode")

    base: Any = copy.TorchDispatchMode

    class Mode(base):
        def __torch_dispatch__(self, *_: Any) -> Any:
            pytest.fail("a mode that torch does not have was called")

    with Mode(), copy.CompilableMode():
        assert (torch.ones(2) + 1).tolist() == [2, 2]
    [why] = lacking()
    assert why.startswith("operators that code of torch calls are not seen: torch ")


def test_without_the_stack_of_modes_none_is_hidden_and_modes_still_see(without: Any) -> None:
    copy = without("dispatch_modes", "torch._C._len_torch_dispatch_stack")
    seen: list[str] = []
    x = torch.ones(2)
    with Seeing("a", seen), copy.without_modes(), copy.innermost(Seeing("own", seen)):
        x + 1
    assert seen == ["a"]
    assert not copy.on_fake_tensors()
    assert copy.MODES.available
    assert not copy.STACK.available
