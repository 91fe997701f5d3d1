"""The page shows the lines of the function at fault, not those above its class."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.report.source import AROUND, BEFORE, MOST_LINES, assigned_at, code_at

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


def test_a_line_is_shown_from_the_beginning_of_its_function_if_that_is_near(tmp_path: Path) -> None:
    path = tmp_path / "function.py"
    for before in (BEFORE - 1, BEFORE):
        path.write_text("FILLER = 1\n" * 9 + "def run():\n" + "    pass\n" * before + "    at\n")
        line = 11 + before
        shown = code_at(f"{path}:{line}", "Source")
        assert shown is not None
        assert shown.first == (10 if before < BEFORE else line - AROUND)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("ctx.loss(loss)", 4),
        ("ctx.loss(loss.detach().clone())", 4),
        ("ctx.loss(loss.sum())", 0),
        ("ctx.loss(2 * loss)", 0),
        ("ctx.loss(given)", 0),
        ("ctx.other(loss)", 0),
        ("ctx.loss(loss, loss)", 0),
    ],
)
def test_the_line_that_assigns_what_a_call_is_given_is_the_last_before_it(
    tmp_path: Path, call: str, line: int
) -> None:
    path = tmp_path / "train.py"
    before = "loss = 1\ndef train(ctx, given):\n    loss = 2\n    loss /= 3\n"
    path.write_text(f"{before}    {call}\n    loss = 4\n")
    assert assigned_at(f"{path}:5", "loss") == (f"{path}:{line}" if line else "")
    assert assigned_at(f"{path}:4", "loss") == assigned_at(f"{path}x:5", "loss") == ""
