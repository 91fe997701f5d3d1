"""The lines that lead to a fault are marked: what decides about others, and what uses a result."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.compare.localize.code.ran import Ran
from pytest_trainsafe.judges.compare.panels.marks import with_marks
from pytest_trainsafe.report.source import code_at

RESULT = """\
class Linear:
    def backward(self, gradient, axes):
        if axes.sp:
            work = start_scatter_all_reduce(gradient)
        else:
            work = start_all_reduce(gradient)
        other = gradient.sum()
        reduced = work.wait()
        into = reduced if axes.sp else gradient
        return into, other


def start_scatter_all_reduce(x):
    return dist.reduce_scatter(x)


def start_all_reduce(x):
    if x is None:
        raise ValueError
    return dist.all_reduce(x)
"""


def test_what_uses_the_result_of_an_exchange_is_marked_and_a_branch_whose_calls_did_not_run_is_pale(
    tmp_path: Path,
) -> None:
    path = tmp_path / "result.py"
    path.write_text(RESULT)
    code = code_at(f"{path}:2", "Source")
    assert code is not None
    # The trace has the line of the collective, and none of backward.
    ran = Ran(frozenset({relative(f"{path}:20")}))
    made = with_marks(code, f"{path}:2", [], ran=ran)
    assert (made.also, made.idle, made.note) == ((6, 8, 9), (4,), "")
    # Nothing tells the branches apart without it.
    unknown = with_marks(code, f"{path}:2", [], ran=Ran(frozenset({relative(f"{path}:1")})))
    assert (unknown.also, unknown.idle) == ((4, 6, 8, 9), ())
    assert unknown.note == "lines 4, 6, in a branch, not known to have run"
    # A branch that raises did not run in a Run that ended.
    code = code_at(f"{path}:17", "Source")
    assert code is not None
    assert with_marks(code, f"{path}:17", [], ran=ran).idle == (19,)


FLAGS = """\
def stage(self, model):
    words = model.words
    tied = words is model.output
    late = tied or isinstance(model, Late)
    other = model.other is None
    if tied and self.last:
        mark(words)
    if other:
        skip()
    for layer in model.layers:
        keep(layer)
    if late:
        self.words = copy(words)
    plain()
    more()
    last()
"""


def test_the_flags_that_decide_whether_a_line_runs_lead_to_it_with_what_else_they_decide(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flags.py"
    path.write_text("FILLER = 1\n" * 10 + FLAGS)
    code = code_at(f"{path}:23", "Source")
    assert code is not None
    assert code.first == 11  # the beginning of the function
    assert with_marks(code, f"{path}:23", []).steps == (13, 14, 16, 22)


SHARED = """\
class Muon:
    def step(self, size):
        for group in self.groups:
            for turn in range(len(group) // size):
                self.update(group[turn])
            for matrix in group:
                broadcast(matrix)
        self.count()
        self.tell()


class Halo(Function):
    def forward(ctx, x):
        return all_gather(x)


def convolve(x):
    halo = Halo.apply(x)
    y = cat(halo, x)
    plain = Other.apply(y)
    return plain
"""


def test_the_loops_of_a_function_and_the_calls_of_autograd_functions_that_exchange_are_marked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shared.py"
    path.write_text(SHARED)
    code = code_at(f"{path}:2", "Source")
    assert code is not None
    made = with_marks(code, f"{path}:2", [])
    assert (made.also, made.steps) == ((7,), (3, 4, 6))
    code = code_at(f"{path}:17", "Source")
    assert code is not None
    assert with_marks(code, f"{path}:17", []).also == (18, 19)


def test_what_a_module_keeps_for_others_to_read_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "kept.py"
    path.write_text(
        "class Moe:\n    def forward(self, x):\n        self.balance = mean(x)\n"
        "        self.unread = x\n        return x\n\n\nloss = out + moe.balance\n"
    )
    code = code_at(f"{path}:2", "Source")
    assert code is not None
    assert with_marks(code, f"{path}:2", []).also == (3,)
