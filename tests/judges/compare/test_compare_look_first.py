"""The terminal, its summary and the page name the same line to look at first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import LadderJudgement, RungJudgement
from pytest_trainsafe.judges.compare.ladder.look_first import look_first
from pytest_trainsafe.judges.compare.ladder.summary import point_summary
from pytest_trainsafe.judges.compare.panels.source import source
from pytest_trainsafe.judges.compare.text.first_line import first_line
from pytest_trainsafe.judges.compare.text.message import failure_message

PROGRAM = """
class Up(Module):
    def __init__(self, size):
        self.size = size

    def forward(self, x):
        return Sum.apply(x)


class Sum(Function):
    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Down(Up):
    pass


model = Up(4)
y = model(x)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def line(program: Path, text: str) -> str:
    """The "file:line" of the program's line that begins with a text."""
    lines = [each.strip() for each in program.read_text().splitlines()]
    return f"{program}:{next(n for n, each in enumerate(lines, 1) if each.startswith(text))}"


def failing(kind: Kind, source: str = "") -> list[Finding]:
    where = TensorId(0, 0, kind, "up", "output")
    wrong = Finding(
        verdict="fail", judge="compare", check="norm", message="", where=where, error=1.0,
        allowed=1e-14, source=source, module_class="Up" if source else "",
    )  # fmt: skip
    return [wrong]


@pytest.mark.parametrize(
    ("phase", "named", "first", "what"),
    [
        ("forward", None, "def forward", ["forward of module class Up"]),
        ("backward", None, "def forward", ["forward of module class Up"]),
        (
            *("forward", ("up.a is called", "y = model", "call"), "y = model"),
            ["up.a is called", "module class Up at {class Up}"],
        ),
        (
            *("backward", ("its backward runs Sum.backward", "@static", "backward")),
            *("def backward", ["its backward runs Sum.backward", "module class Up at {class Up}"]),
        ),
        (
            *("forward", ("up is set up", "model = Up", "set up"), "def forward"),
            ["forward of module class Up", "up is set up at {model = Up}"],
        ),
    ],
)
def test_every_text_and_the_page_name_the_same_line_first(
    program: Path, phase: str, named: tuple[str, str, Any] | None, first: str, what: list[str]
) -> None:
    def filled(text: str) -> str:
        for each in ("class Up", "model = Up"):
            text = text.replace(f"{{{each}}}", relative(line(program, each)))
        return text

    found = failing("activation" if phase == "forward" else "activation_grad")
    clauses = [Clause("module class Up")]
    if named is not None:
        words, text, kind = named
        clauses.append(at(words, line(program, text), kind=kind))
    located = Located((), line(program, "class Up"), tuple(clauses), ((phase, "up"),))

    place = line(program, first)
    assert look_first(located, found) == (place, [*map(filled, what)])
    assert source(located, found, explained=False)[0].file == relative(place)
    rung = RungJudgement("float64", "float64", Comparison("float64", found), [], [])
    text = failure_message("p", "tp=2", [rung], "", located=located)
    # A long path wraps the line: the words are compared, not the columns.
    assert f" look at {relative(place)} (" in " ".join(text.split())
    judgement = LadderJudgement("p", "tp=2", [rung], located=located)
    assert first_line(judgement).endswith(f", at {relative(place)}")


def test_without_a_search_the_forward_of_the_first_wrong_module_is_named(program: Path) -> None:
    at, place = line(program, "class Up"), line(program, "def forward")
    found = failing("activation", at)
    assert look_first(None, found) == (place, ["forward of module class Up"])
    assert source(None, found, explained=False)[0].file == relative(place)
    rung = RungJudgement("float64", "float64", Comparison("float64", found), [], [])
    summary = point_summary(LadderJudgement("p", "tp=2", [rung]), {})
    assert summary["first"]["source"] == place
    rung.explained = True
    assert look_first(None, found, explained=True) == ("", [])
    assert point_summary(LadderJudgement("p", "tp=2", [rung]), {})["first"]["source"] == ""


def test_a_class_without_its_own_forward_and_a_line_that_begins_none_stay_as_they_are(
    program: Path,
) -> None:
    for text in ("class Down", "def forward", "y = model"):
        at = line(program, text)
        assert look_first(None, failing("activation", at)) == (at, ["module class Up"])
    gone = f"{program}x:3"
    assert look_first(None, failing("activation", gone)) == (gone, ["module class Up"])
