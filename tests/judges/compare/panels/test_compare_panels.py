"""The comparison's panels follow dataflow, mark the first wrong tensor, and stay small."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import MEANINGS, Kind, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison, Measured
from pytest_trainsafe.judges.compare.fault.clause import Clause, at, listed
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import LadderJudgement, RungJudgement
from pytest_trainsafe.judges.compare.localize.code.lines import caller_of, step_of
from pytest_trainsafe.judges.compare.panels import panels
from pytest_trainsafe.judges.compare.panels.dataflow import MOST_MODULES
from pytest_trainsafe.judges.compare.panels.source import source
from pytest_trainsafe.judges.compare.panels.tensors import MOST_TENSORS
from pytest_trainsafe.report.panels import Code, Graph, HeatMap, Panel, Section, Series, Table
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import Changed, Site


def tensor(module: str, kind: Kind = "activation", name: str = "output", step: int = 0) -> TensorId:
    return TensorId(step, None if kind == "update" else 0, kind, module, name)


def judged(ids: list[TensorId], wrong: dict[TensorId, float | None]) -> LadderJudgement:
    """A comparison of tensors with an error of a tenth of the allowed, and wrong ones."""
    measured: dict[TensorId, Measured | None] = {
        id: Measured(1e-15, 1e-14, 0.1) for id in ids if id not in wrong
    }
    findings = []
    for order, (id, error) in enumerate(wrong.items()):
        if error is not None:
            measured[id] = Measured(error, 1e-14, error / 1e-14)
        check = "norm" if error is not None else "missing"
        pattern = Pattern("partial sum", "they are terms", short="partial sums over tp")
        findings.append(
            Finding(
                verdict="fail", judge="compare", check=check, message="", where=id, error=error,
                allowed=1e-14, order=order, pattern=pattern,
            )
        )  # fmt: skip
    ordered = {id: measured.get(id) for id in ids if id in measured}
    comparison = Comparison("float64", findings=findings, measured=ordered, worst=0.1)
    rung = RungJudgement("float64", "float64", comparison, [], [])
    return LadderJudgement("gpt.train", "tp=2", [rung])


def find(kind: type, made: list[Panel]):
    return next(panel for panel in made if isinstance(panel, kind))


IDS = [
    TensorId(0, 0, "input", "", "input.0"),
    *map(tensor, ("embed", "layers.0.up", "layers.0", "layers.1.up", "layers.1", "")),
    tensor("layers.1.up", "activation_grad"),
    tensor("layers.0.up", "activation_grad"),
    tensor("layers.0.up", "param_grad", "weight"),
    tensor("layers.0.up", "update", "weight"),
]  # fmt: skip


def test_the_dataflow_has_the_modules_in_the_order_of_the_forward_and_one_first() -> None:
    first, later = (
        tensor("layers.1.up", "activation_grad"),
        tensor("layers.0.up", "update", "weight"),
    )
    made = [*panels(judged(IDS, {first: 1e-2, later: 0.5}))]
    graph = find(Graph, made)

    modules = ("input", "embed", "layers.0.up", "layers.0", "layers.1.up", "layers.1")
    assert graph.rows == (*modules, "the whole model")
    gradients = ("backward (activation_grad)", "micro-batch gradient (param_grad)")
    assert graph.lanes == ("forward", *gradients, "optimizer")
    assert graph.up == (1, 2)
    states = {(graph.lanes[n.lane], graph.rows[n.row]): n.state for n in graph.nodes}
    assert states[gradients[0], "layers.1.up"] == "first"
    assert states["optimizer", "layers.0.up"] == "wrong"
    assert {state for key, state in states.items() if key[0] in ("forward", gradients[1])} == {
        "pale"
    }
    heat = find(HeatMap, made)
    assert heat.first is not None
    assert (heat.rows[heat.first[0]], heat.columns[heat.first[1]]) == (
        "layers.1",
        "activation_grad",
    )
    assert heat.anchors[heat.first[0]][heat.first[1]] == str(first)


def test_curves_show_the_error_what_is_allowed_and_the_effect_of_the_fault() -> None:
    ids = [tensor(f"layers.{n}", "param_grad", "weight") for n in range(4)]
    made = [*panels(judged(ids, {ids[2]: 5e-14}))]
    [series] = [panel for panel in made if isinstance(panel, Series)]

    lines = {line.name: line.values for line in series.lines}
    assert lines["error"] == (1e-15, 1e-15, 5e-14, 1e-15)
    assert lines["allowed"] == (1e-14,) * 4
    effect = lines["error beyond what rounding explains"]
    assert effect[2] == pytest.approx(math.sqrt(5e-14**2 - 1e-14**2), rel=1e-3)
    assert effect[:2] == (None, None)
    assert series.states == ("pale", "pale", "first", "pale")


def test_a_forward_without_an_error_has_no_curve_beside_what_is_wrong() -> None:
    ids = [
        tensor(f"layers.{n}", kind) for kind in ("activation", "activation_grad") for n in (0, 1)
    ]
    for error, titles in ((0.0, ["activation_grad"]), (1e-15, ["activation", "activation_grad"])):
        judgement = judged(ids, {ids[-1]: 5e-14})
        measured = judgement.rungs[0].comparison.measured
        assert measured is not None
        measured.update(dict.fromkeys(ids[:2], Measured(error, 1e-14, error / 1e-14)))
        made = [panel for panel in panels(judgement) if isinstance(panel, Series)]
        assert [panel.title for panel in made] == [f"Errors of {each}, in order" for each in titles]


def test_replicas_that_differ_have_no_error_of_the_first_one() -> None:
    wrong = tensor("layers.0.up")
    judgement = judged(IDS, {wrong: 1e-16})
    comparison = judgement.rungs[0].comparison
    [found] = comparison.findings
    comparison.findings[:] = [msgspec.structs.replace(found, check="replicas", error=None)]
    table = next(p for p in panels(judgement) if p.title == "Compared tensors")

    assert isinstance(table, Table)
    assert table.rows[0][4:7] == (None, None, "inf")


def test_a_wrong_tensor_without_a_measured_error_is_marked_too() -> None:
    missing = tensor("layers.0.up", "param_grad", "weight")
    made = [*panels(judged(IDS, {missing: None}))]
    table = next(p for p in made if isinstance(p, Table) and p.title == "Compared tensors")

    assert table.states[0] == "first"
    assert table.anchors[0] == str(missing)
    assert table.rows[0][-2:] == ("missing", "partial sums over tp")
    assert find(HeatMap, made).first is not None
    assert "missing" in {value for row in find(HeatMap, made).values for value in row}
    assert "missing" in {node.value for node in find(Graph, made).nodes}


def test_panels_of_a_large_model_stay_within_their_bounds() -> None:
    layers = [f"decoder.layers.{n}.block.{part}" for n in range(150) for part in range(20)]
    ids = [tensor(module) for module in layers]
    made = [*panels(judged(ids, {ids[1500]: 1.0}))]
    graph, table = find(Graph, made), find(Table, [p for p in made if p.title != "Dtypes"])

    assert len(graph.rows) <= MOST_MODULES
    assert graph.rows[75] == "decoder.layers.75.block"
    assert [node.row for node in graph.nodes if node.state == "first"] == [75]
    assert len(table.rows) == MOST_TENSORS
    assert table.states[0] == "first"
    assert table.note.endswith(f"{3000 - MOST_TENSORS} with smaller errors are left out")
    section = Section(judge="compare", verdict="fail", panels=tuple(made))
    encoded = msgspec.json.encode(section)
    assert len(encoded) < 500_000
    assert msgspec.json.decode(encoded, type=Section) == section


PROGRAM = (
    "class Up(Module):\n    def forward(self, x):\n        return Sum.apply(x)\n\n\n"
    "class Sum(Function):\n    def backward(ctx, gradient):\n        return gradient\n\n\n"
    "\n\n\n\n\n\n"
    "model = Up()\n"
)


UP = Clause("module class Up")


def backward_at(line: str) -> Clause:
    return listed("its backward runs", [("Sum.backward", line)], kind="backward")


def shown_at(judgement: LadderJudgement, located: Located) -> list[tuple[str, str]]:
    """The marked line and the note of each place of code that the page shows."""
    made = panels(dataclasses.replace(judgement, located=located))
    return [
        (code.lines[code.marked - code.first].strip(), code.note)
        for code in made
        if isinstance(code, Code)
    ]


def test_a_wrong_backward_shows_the_autograd_function_first_and_each_place_with_its_clause(
    tmp_path: Path,
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    absent = at("its name is defined", f"{tmp_path}/absent.py:3")
    what = (
        *(UP, at("layers.1.up is set up", f"{path}:17", kind="set up"), backward_at(f"{path}:7")),
        *(absent, Clause("zero has no effect")),
    )
    judgement = judged(IDS, {tensor("layers.1.up", "activation_grad"): 1e-2})

    assert shown_at(judgement, Located((), f"{path}:1", what, (("backward", "layers.1.up"),))) == [
        (
            "def backward(ctx, gradient):",
            f"its backward runs Sum.backward; zero has no effect; {absent}",
        ),
        ("def forward(self, x):", "forward of module class Up"),
        ("model = Up()", "layers.1.up is set up"),
    ]


def test_beside_a_wrong_loss_the_forward_of_a_wrong_backward_is_shown_first(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    what = (UP, backward_at(f"{path}:7"))
    judgement = judged(IDS, {tensor("layers.1.up", "activation_grad"): 1e-2})
    faults = (("backward", "layers.1.up"), ("loss", ""))

    shown = shown_at(judgement, Located((), f"{path}:1", what, faults))
    assert next(line for line, _ in shown) == "def forward(self, x):"


def test_a_module_that_calls_its_own_wrongly_shows_the_line_of_the_call_first(
    tmp_path: Path,
) -> None:
    path, caller = tmp_path / "program.py", tmp_path / "caller.py"
    path.write_text(PROGRAM)
    caller.write_text("\n" * 20 + "x = layer(first)\n")
    judgement = judged(IDS, {tensor("layers.1.up"): 1e-2})
    faults = (("forward", "layers.1.up"),)
    what = (UP, at("layers.1.up.a is called", f"{caller}:21", kind="call"))

    found = shown_at(judgement, Located((), f"{path}:1", what, faults))
    assert found == [
        ("x = layer(first)", "layers.1.up.a is called"),
        ("def forward(self, x):", "forward of module class Up"),
    ]
    # A line that calls the whole model is behind every fault, and no cause of one.
    what = (UP, at("the model is called", f"{caller}:21"))
    found = shown_at(judgement, Located((), f"{path}:1", what, faults))
    assert [line for line, _ in found] == ["def forward(self, x):", "x = layer(first)"]


@pytest.mark.parametrize(("cause", "first"), [("the optimizer's setting lr is 2", 1), ("", 0)])
def test_a_setting_that_differs_shows_the_construction_of_the_optimizer_first(
    tmp_path: Path, cause: str, first: int
) -> None:
    path = tmp_path / "program.py"
    path.write_text("\n" * 20 + "optimizer.step()\n" + "\n" * 20 + "optimizer = SGD(lr)\n")
    judgement = judged(IDS, {tensor("layers.0.up", "update", "weight"): 1.0})
    [finding] = judgement.rungs[0].comparison.findings
    pattern = Pattern("scaled", "twice", cause=cause, factor=2.0)
    judgement.rungs[0].comparison.findings[:] = [msgspec.structs.replace(finding, pattern=pattern)]
    constructed = at("SGD is constructed", f"{path}:42", kind="construction")
    what = (Clause("steps the optimizer"), constructed)

    found = shown_at(judgement, Located((), f"{path}:21", what, (("optimizer", "a"),)))
    assert [line for line, _ in found][first] == "optimizer.step()"
    assert len(found) == 2


def test_the_dataflow_says_what_agrees_before_and_inside_the_first_wrong_module() -> None:
    graph = find(Graph, [*panels(judged(IDS, {tensor("layers.1"): 1e-2}))])
    assert graph.note.endswith(
        ". First wrong: layers.1.output. Everything before it agrees (5 inputs and outputs), also "
        "what the modules inside it give (1); its own output is wrong"
    )
    plain = find(Graph, [*panels(judged(IDS, {tensor("embed"): 1e-2}))])
    assert plain.note.endswith("embed.output. Everything before it agrees (1 inputs and outputs)")
    backward = tensor("layers.1.up", "activation_grad")
    assert "First wrong" not in find(Graph, [*panels(judged(IDS, {backward: 1.0}))]).note


def test_each_kind_of_tensor_is_explained_where_it_is_shown() -> None:
    heat = find(HeatMap, [*panels(judged(IDS, {}))])
    assert "param_grad: the gradient of a parameter from the backward of one micro-bat" in heat.note
    assert heat.note.count(": ") == 1 + len(heat.columns)
    assert {*get_args(Kind)} == {*MEANINGS}


def test_a_wrong_tensor_without_a_pattern_says_whether_one_was_looked_for() -> None:
    ids = [tensor(f"layers.{n}") for n in range(3)]
    judgement = judged(ids, dict.fromkeys(ids, 1.0))
    comparison = judgement.rungs[0].comparison
    comparison.findings[1:] = [
        msgspec.structs.replace(finding, pattern=None) for finding in comparison.findings[1:]
    ]
    comparison.unsought.add(ids[2])
    table = next(p for p in panels(judgement) if p.title == "Compared tensors")

    assert isinstance(table, Table)
    assert [row[-1] for row in table.rows] == [
        *("partial sums over tp", "no pattern fits", "not looked for")
    ]


def test_a_dtype_that_fails_without_an_error_has_no_ratio() -> None:
    missing = tensor("layers.0.up", "param_grad", "weight")
    for wrong, ratio in (({missing: None}, None), ({}, 0.1)):
        judgement = judged(IDS, dict(wrong))
        table = next(p for p in panels(judgement) if p.title == "Dtypes")
        assert isinstance(table, Table)
        assert table.rows[0][3] == ratio


def test_the_table_says_where_patterns_are_looked_for() -> None:
    ids = [tensor(f"layers.{n}") for n in range(20)]
    for wrong, said in ((20, True), (3, False)):
        made = [*panels(judged(ids, dict.fromkeys(ids[:wrong], 1.0)))]
        table = next(p for p in made if isinstance(p, Table) and p.title == "Compared tensors")
        assert ("patterns are looked for in the first 12 wrong tensors" in table.note) == said


def test_a_class_whose_forward_is_wrong_has_its_constructor_shown_after_the_forward(
    tmp_path: Path,
) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "class Up(Module):\n    def __init__(self):\n        self.scale = 2.0\n\n"
        "    def forward(self, x):\n        return self.scale * x\n"
    )
    kinds: tuple[Kind, ...] = ("activation", "activation_grad")
    for kind, constructor in zip(kinds, (["def __init__(self):"], []), strict=True):
        judgement = judged(IDS, {tensor("layers.1.up", kind): 1e-2})
        [finding] = judgement.rungs[0].comparison.findings
        found = [msgspec.structs.replace(finding, source=f"{path}:1")]
        shown = [*source(None, found, explained=False)]
        marked = [code.lines[code.marked - code.first].strip() for code in shown]
        assert marked == ["def forward(self, x):", *constructor]


def test_the_functions_that_the_first_line_calls_follow_it(tmp_path: Path) -> None:
    path = tmp_path / "stages.py"
    path.write_text(
        "def numbers(n):\n    return range(n)\n\n\n" + "FILLER = 1\n" * 20 + "\n\n"
        "def build(n):\n    return Stage(numbers(n))\n\n\n" + "FILLER = 1\n" * 20
        + "class Stage:\n    pass\n"
    )  # fmt: skip
    lines = path.read_text().splitlines()
    line, cls = (lines.index(each) + 1 for each in ("    return Stage(numbers(n))", "class Stage:"))
    stage = at("module class Stage", f"{path}:{cls}", by=" is at ")
    what = (Clause("sets up layers.0 on its stage"), stage)
    shown = source(Located((), f"{path}:{line}", what), [], explained=False)

    marked = [code.lines[code.marked - code.first].strip() for code in shown]
    assert marked == ["return Stage(numbers(n))", "def numbers(n):", "class Stage:"]
    assert [code.note for code in shown] == [
        "sets up layers.0 on its stage",
        f"called by {relative(f'{path}:{line}')}",
        "module class Stage",
    ]


def test_the_functions_between_a_line_and_its_caller_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "balance.py"
    path.write_text(
        "class Bias:\n    def update(self, counts):\n        self.bias += counts\n\n\n"
        + "FILLER = 1\n" * 20
        + "def balance(all):\n    all[0].update(1)\n\n\n"
        + "FILLER = 1\n" * 20
        + "balance(every)\n"
    )  # fmt: skip
    last = len(path.read_text().splitlines())
    changed = Changed(0, f"{path}:3", "add_", f"{path}:{last}")
    what = (Clause("changes buffers, by add_"), *caller_of(changed))
    shown = source(Located((), f"{path}:3", what), [], explained=False)

    marked = [code.lines[code.marked - code.first].strip() for code in shown]
    assert marked == ["self.bias += counts", "def balance(all):", "balance(every)"]


@pytest.mark.parametrize(
    ("axes", "cp_idle", "dp_idle"),
    [({"tp": 2}, (3,), (5,)), ({"cp": 2}, (), ()), ({"dp": 2}, (3,), ())],
    ids=str,
)
def test_the_point_decides_which_lines_of_a_shown_function_did_not_run(
    tmp_path: Path, axes: dict[str, int], cp_idle: tuple[int, ...], dp_idle: tuple[int, ...]
) -> None:
    path = tmp_path / "reduce.py"
    path.write_text(
        "def reduce(x, cp_size, dp_size):\n"
        "    if cp_size > 1:\n        x = all_reduce(x)\n"
        "    if dp_size > 1:\n        x = all_reduce(x)\n"
        "    return x\n"
    )
    judgement = dataclasses.replace(
        judged(IDS, {IDS[2]: 0.5}),
        case=Case(Point.of(axes), Program("fit:train"), Settings()),
        located=Located((), f"{path}:1", (Clause("reduces"),)),
    )
    code = find(Code, [*panels(judgement)])
    # By dp, programs also mean dp and cp together, so that at cp=2 nothing is known of it.
    assert code.idle == (*cp_idle, *dp_idle)


def test_what_a_step_runs_is_said_beside_each_place_alone(tmp_path: Path) -> None:
    path = tmp_path / "muon.py"
    fill = "F = 1\n" * 20
    path.write_text(
        f"optimizer.step()\n{fill}def step(self):\n    pass\n{fill}def update(self):\n    pass\n"
    )
    runs = step_of(
        Site("stepper", f"{path}:22", name="Muon"),
        [Site("steps", f"{path}:44", name="Muon.update")],
    )
    shown = source(Located((), f"{path}:1", (Clause("steps"), runs)), [], explained=False)
    notes = {code.marked: code.note for code in shown}
    assert notes[22] == "Muon.step is defined"
    assert notes[44] == "Muon.step runs Muon.update"
