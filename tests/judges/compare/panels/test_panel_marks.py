"""Beside the line that a place names, the lines that take part in the fault are marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.code.ran import Ran
from pytest_trainsafe.judges.compare.panels.marks import with_marks
from pytest_trainsafe.judges.compare.panels.set_marks import marks_read, set_at
from pytest_trainsafe.judges.compare.panels.source import source
from pytest_trainsafe.report.source import code_at

PROGRAM = """\
def start(bucket, axes):
    divisor = axes.dp.size
    unused = axes.tp.size
    bucket.mul_(1 / divisor)
    if axes.zero:
        scatter(bucket)
        all_reduce(bucket)
    number = bucket.as_strided((2,), (1,))
    layer = Block(
        number,
        blocks=(),
    )
    work.wait()
"""


STRIDED = "number = bucket.as_strided((2,), (1,))"


def marked(folder: Path, line: int, *others: int, **facts: bool) -> list[str]:
    path = folder / "program.py"
    path.write_text(PROGRAM)
    code = code_at(f"{path}:{line}", "Source")
    assert code is not None
    places = [f"{path}:{each}" for each in others]
    made = with_marks(
        code,
        f"{path}:{line}",
        places,
        scales=facts.get("scales", False),
        reduces=facts.get("reduces", False),
        set_up=facts.get("set_up", False),
    )
    return [made.lines[each - made.first].strip() for each in made.also]


@pytest.mark.parametrize(
    ("line", "facts", "expected"),
    [
        (7, {"scales": True}, ["divisor = axes.dp.size", "bucket.mul_(1 / divisor)"]),
        (7, {"reduces": True}, ["if axes.zero:"]),
        (9, {"set_up": True}, [STRIDED, "number,", "blocks=(),", ")"]),
        (1, {}, ["all_reduce(bucket)", STRIDED, "work.wait()"]),
        (7, {}, []),
    ],
)
def test_a_fact_marks_the_lines_that_it_is_about(
    tmp_path: Path, line: int, facts: dict[str, bool], expected: list[str]
) -> None:
    assert marked(tmp_path, line, **facts) == expected


STATE = """\
class Gathers:
    def __init__(self, axis):
        self.axis = axis
        self._left = {}

    def start(self, number):
        if self.axis.zero:
            reduce_scatter(number)
        else:
            all_reduce(number)
        self._left[number] = begin(number)

    def finish(self):
        for each in self._left.values():
            each.wait()
"""


def test_what_an_object_keeps_between_calls_is_marked_where_it_begins_and_changes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gathers.py"
    path.write_text(STATE)

    def also(line: int, *ran: int) -> tuple[int, ...]:
        code = code_at(f"{path}:{line}", "Source")
        assert code is not None
        known = Ran(frozenset(relative(f"{path}:{each}") for each in ran))
        return with_marks(code, f"{path}:{line}", [], ran=known).also

    assert also(2) == (4,)
    assert also(6) == (8, 10, 11)
    # The branch of line 8 did not run beside that of line 10; of neither nothing is known.
    assert also(6, 8) == (8, 11)
    code = code_at(f"{path}:6", "Source")
    assert code is not None
    elsewhere = Ran(frozenset({relative(f"{path}:1")}))
    made = with_marks(code, f"{path}:6", [], ran=elsewhere)
    assert made.note == "lines 8, 10, in a branch, not known to have run"


MARKS = """\
def is_shared(parameter):
    return getattr(parameter, "shared", False)


def reduce(parameters):
    for parameter in parameters:
        if is_shared(parameter):
            all_reduce(parameter.grad)


mark(table)
"""


def test_the_lines_that_set_a_mark_are_found_from_the_condition_that_reads_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "marks.py"
    path.write_text("def mark(parameter):\n    parameter.shared = True\n" + "F = 1\n" * 20 + MARKS)

    assert marks_read(str(path), 29) == ["shared"]
    assert [line.rpartition(":")[2] for line in set_at("shared", str(path), ())] == ["2", "33"]
    lead = Finding(
        verdict="fail", judge="compare", check="norm", message="",
        where=TensorId(0, 0, "main_grad", "", "table"), pattern=Pattern("partial sum", "terms"),
    )  # fmt: skip
    located = Located((), f"{path}:30", (Clause("all_reduce over tp"),), (("reduction", "table"),))
    shown = source(located, [lead], explained=False)
    assert [
        code.note.partition(";")[0] for code in shown if code.title.endswith("mark is set")
    ] == ["sets the mark 'shared' of a parameter, which the condition reads"]


def test_a_decorator_is_no_place_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "decorated.py"
    path.write_text("@staticmethod\ndef backward(ctx):\n    return 1\n")
    code = code_at(f"{path}:2", "Source")
    assert code is not None
    made = with_marks(code, f"{path}:2", [f"{path}:1"])
    assert made.also == ()


def test_another_place_among_the_lines_is_marked(tmp_path: Path) -> None:
    assert marked(tmp_path, 4, 6) == ["scatter(bucket)"]


def test_what_a_forward_calls_stands_before_the_line_that_sets_up_its_module(
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "class Up:\n    def forward(self, x):\n        return twice(x)\n\n\n"
        "def twice(x):\n    return 2 * x\n" + "FILLER = 1\n" * 20 + "up = Up()\n"
    )
    what = (Clause("module class Up"), at("layers.0 is set up", f"{path}:28", kind="set up"))
    faults = (("forward", "layers.0"),)
    shown = source(Located((), f"{path}:1", what, faults), [], explained=False)
    assert [code.lines[code.marked - code.first].strip() for code in shown] == [
        *("def forward(self, x):", "def twice(x):", "up = Up()")
    ]
    # If other modules of the class agree, the line that sets it up comes first.
    agree = "layers.1 of the same class agrees, so look at what this one is set up with"
    what = (Clause("module class Up"), at(agree, f"{path}:28", by=", at ", kind="set up apart"))
    shown = source(Located((), f"{path}:1", what, faults), [], explained=False)
    assert shown[0].lines[shown[0].marked - shown[0].first] == "up = Up()"


SETTERS = """\
def build(axes):
    if axes.cp.size > 1:
        _mark_all(axes)
    mark(axes.table)


def _mark_all(axes):
    mark(axes.norm)


def mark(parameter):
    parameter.shared = True
"""


def test_a_line_that_cannot_have_run_sets_no_mark_and_each_named_setter_has_its_text(
    tmp_path: Path,
) -> None:
    path = tmp_path / "setters.py"
    path.write_text(SETTERS + "F = 1\n" * 20 + MARKS.partition("\n\n\nmark")[0] + "\n")
    reduces = len(path.read_text().splitlines())
    lead = Finding(
        verdict="fail", judge="compare", check="norm", message="",
        where=TensorId(0, 0, "main_grad", "", "table"), pattern=Pattern("partial sum", "terms"),
    )  # fmt: skip
    located = Located(
        (), f"{path}:{reduces}", (Clause("all_reduce over tp"),), (("reduction", "table"),)
    )

    def notes(cp: int) -> str:
        shown = source(located, [lead], explained=False, ran=Ran(axes={"cp": cp}))
        setters = [code for code in shown if code.title.endswith("mark is set")]
        # The others are listed once, beside the first.
        assert [" or passed on at " in code.note for code in setters[:2]] == [True, False]
        lines = [code.lines[code.marked - code.first].strip() for code in setters]
        return " ".join(
            f"{c.file} `{line}` {c.note}" for c, line in zip(setters, lines, strict=True)
        )

    assert f"{relative(f'{path}:4')} `mark(axes.table)`" in notes(1)
    assert "mark(axes.norm)" not in notes(1)
    assert f"{relative(f'{path}:8')} `mark(axes.norm)`" in notes(2)


def test_a_place_that_cannot_have_run_is_not_offered(tmp_path: Path) -> None:
    path = tmp_path / "places.py"
    path.write_text(
        "def step(cp):\n    if cp > 1:\n        all_reduce(1)\n" + "F = 1\n" * 20 + "step(2)\n"
    )
    located = Located(
        (), f"{path}:24", (at("called", f"{path}:3", kind="caller"),), (("unheld", "w"),)
    )

    def marked(cp: int) -> list[int]:
        return [c.marked for c in source(located, [], explained=False, ran=Ran(axes={"cp": cp}))]

    assert 3 in marked(2)
    assert 3 not in marked(1)


STEPS = """\
def reduce(parameters, cp, dp):
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if cp > 1:
            all_reduce(parameter)
        else:
            check(parameter)
        scale = 2


def double(x):
    y = x * 2
    unused = 3
    log(unused)
    count(unused)
    if y is None:
        return x
    return y
"""


def test_conditions_that_decide_and_jumps_lead_to_a_marked_line_and_idle_lines_do_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)

    def shown(line: int, cp: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        code = code_at(f"{path}:{line}", "Source")
        assert code is not None
        made = with_marks(code, f"{path}:{line}", [], ran=Ran(axes={"cp": cp}))
        return made.also, made.steps, made.idle

    assert shown(6, 2) == ((), (2, 3, 4, 5), (8,))  # a line of a function
    assert shown(1, 2) == ((6,), (2, 3, 4, 5), (8,))  # the whole function
    # Without the call, nearly all lines make the result, so that a mark at each says nothing.
    assert shown(1, 1) == ((), (), (6,))


def test_a_function_without_another_mark_has_the_statements_that_make_its_result(
    tmp_path: Path,
) -> None:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    code = code_at(f"{path}:12", "Source")
    assert code is not None
    assert with_marks(code, f"{path}:12", []).steps == (13, 17, 18, 19)


def test_a_panel_says_which_runs_have_run_its_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    code = code_at(f"{path}:6", "Source")
    assert code is not None
    line = frozenset({relative(f"{path}:6")})
    for ran, said in (
        (Ran(line, line), "runs in the candidate and in the reference"),
        (Ran(line), "runs in the candidate"),
        (Ran(), ""),
    ):
        assert with_marks(code, f"{path}:6", [], ran=ran).runs == said


def test_what_only_a_line_that_did_not_run_leads_to_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "led.py"
    fill = "F = 1\n" * 20
    path.write_text(
        "def forward(x, cp):\n    if cp > 1:\n        return gather(x)\n    return copy(x)\n"
        f"{fill}def gather(x):\n    return deeper(x)\n{fill}def deeper(x):\n    return x\n"
        f"{fill}def copy(x):\n    return x\n"
    )
    located = Located((), f"{path}:1", (Clause("forward of class Model"),))

    def named(cp: int) -> set[str]:
        shown = source(located, [], explained=False, ran=Ran(axes={"cp": cp}))
        return {code.lines[code.marked - code.first] for code in shown}

    assert named(2) >= {"def gather(x):", "def deeper(x):"}
    assert named(1) == {"def forward(x, cp):", "def copy(x):"}


def test_a_setter_in_a_function_about_the_module_of_the_wrong_parameter_is_shown_first(
    tmp_path: Path,
) -> None:
    path = tmp_path / "about.py"
    fill = "F = 1\n" * 20
    path.write_text(
        f"def mark(parameter):\n    parameter.shared = True\n{fill}"
        f"def score(router):\n    mark(router.weight)\n{fill}"
        + MARKS.replace("mark(table)", f"{fill}mark(table)")
    )
    reduces = path.read_text().splitlines().index("            all_reduce(parameter.grad)") + 1
    lead = Finding(
        verdict="fail", judge="compare", check="norm", message="",
        where=TensorId(0, 0, "main_grad", "layers.1.router", "weight"),
        pattern=Pattern("partial sum", "terms"),
    )  # fmt: skip
    located = Located(
        (), f"{path}:{reduces}", (Clause("all_reduce over tp"),), (("reduction", "w"),)
    )
    shown = source(located, [lead], explained=False)
    setters = [code for code in shown if code.title.endswith("mark is set")]
    assert setters[0].lines[setters[0].marked - setters[0].first].strip() == "mark(router.weight)"
