"""The page shows the lines of the function at fault, not those above its class."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.report.source import AROUND, MOST_LINES, called_at, code_at

MODULE = '''import torch


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@torch.no_grad
class Up(torch.nn.Module):
    """Adds up."""

    def __init__(self):
        super().__init__()
        self.size = 1

    def forward(self, value):
        return Sum.apply(value)


class Same(Up):
    size = 2


LAST = 1
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    return path


def number(text: str) -> int:
    return MODULE.splitlines().index(text) + 1


@pytest.mark.parametrize(
    ("line", "methods", "first", "marked"),
    [
        ("class Up(torch.nn.Module):", ("forward",), "    def forward(self, value):", 22),
        ("@torch.no_grad", ("backward", "forward"), "    def forward(self, value):", 22),
        ("class Sum(torch.autograd.Function):", ("backward", "forward"), "    @staticmethod", 10),
        ("    def forward(self, value):", (), "    def forward(self, value):", 22),
    ],
)
def test_a_class_or_function_is_shown_by_the_lines_of_the_function(
    module: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    methods: tuple[str, ...],
    first: str,
    marked: int,
) -> None:
    monkeypatch.chdir(module.parent)
    shown = code_at(f"{module}:{number(line)}", "Source", methods=methods)

    assert shown is not None
    assert shown.lines[0] == first
    assert shown.marked == marked
    assert "def " in shown.lines[shown.marked - shown.first]
    assert shown.file == f"module.py:{marked}"
    assert len(shown.lines) <= 3


@pytest.mark.parametrize("line", ["class Same(Up):", "LAST = 1", "        return gradient"])
def test_any_other_line_is_shown_with_those_around_it(module: Path, line: str) -> None:
    at = number(line)
    shown = code_at(f"{module}:{at}", "Source", methods=("forward",))

    assert shown is not None
    assert (shown.marked, shown.first) == (at, at - AROUND)
    assert shown.lines[AROUND] == line


def test_a_long_function_is_cut_and_a_file_that_cannot_be_parsed_has_its_lines(
    tmp_path: Path,
) -> None:
    path = tmp_path / "long.py"
    path.write_text("def run():\n" + "    pass\n" * 100)
    shown = code_at(f"{path}:1", "Source")
    assert shown is not None
    assert len(shown.lines) == MOST_LINES
    path.write_text("def run(:\n" + "    pass\n" * 100)
    shown = code_at(f"{path}:1", "Source")
    assert shown is not None
    assert len(shown.lines) == AROUND + 1
    path.write_text("(" * 50_000)
    assert code_at(f"{path}:1", "Source") is not None


CALLING = """
def whole(layers):
    return layers


class Model:
    def __init__(self):
        self.stages = [
            Stage(part(n), self.named(n)) for n in range(2)
        ]
        self.size = 1

    def named(self, n):
        return whole(n)


def part(n):
    return n


class Ring(Function):
    @staticmethod
    def forward(ctx, x):
        return part(x)

    @staticmethod
    def backward(ctx, x):
        return x


class Attention:
    def forward(self, x):
        return Ring.apply(x)
"""


def test_the_functions_of_a_file_that_a_line_calls_are_found_and_those_that_these_call(
    tmp_path: Path,
) -> None:
    path = tmp_path / "calling.py"
    path.write_text(CALLING)
    lines = CALLING.splitlines()

    def at(line: str) -> str:
        return f"{path}:{lines.index(line) + 1}"

    called = [at("def part(n):"), at("    def named(self, n):"), at("def whole(layers):")]
    for number in (8, 9, 10):
        assert called_at(f"{path}:{number}") == called
    ring = at("    def forward(ctx, x):"), at("def part(n):")
    assert called_at(at("    def forward(self, x):")) == [*ring]
    assert called_at(at("    def forward(self, x):"), "backward") == [
        at("    def backward(ctx, x):")
    ]
    for nothing in ("11", "2", "6", "99", "x"):
        assert called_at(f"{path}:{nothing}") == []
    assert called_at("") == []
    assert called_at("no/such/file.py:1") == []


def test_the_hooks_that_a_constructor_registers_are_found_at_each_of_its_lines(
    tmp_path: Path,
) -> None:
    path = tmp_path / "hooks.py"
    path.write_text(
        "class Sharded(Adam):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_step_post_hook(self._gather)\n\n"
        "    def _gather(self, *_):\n        self.gathers = {}\n"
    )
    assert called_at(f"{path}:3") == [f"{path}:6"]
    assert called_at(f"{path}:7") == []
