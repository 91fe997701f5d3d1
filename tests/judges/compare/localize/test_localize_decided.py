"""The axis values of a Point decide conditions of a program, and so which lines cannot have run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.compare.localize.code.decided import decided
from pytest_trainsafe.judges.compare.localize.code.ran import Ran

AXES: dict[str, int | bool | str] = {"cp": 1, "tp": 2, "sp": False, "recompute": "full"}


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("cp > 1", False),
        ("axes.cp.size > 1", False),
        ("config.tp_size == 2", True),
        ("1 < point['tp']", True),
        ("tp_group.size() == 1", False),
        ("mesh['cp'].size() > 1", False),
        ("recompute == 'full'", True),
        ("not axes.sp", True),
        ("tp > 1 and cp > 1", False),
        ("tp > 1 or unknown", True),
        ("cp > 1 or unknown", None),
        ("unknown and not sp", None),
        ("axes.cp", None),  # an object, or a number
        ("cp is None", None),
        ("cp_rank > 0", None),
        ("width > 1", None),
        ("tp == cp", None),  # neither is a constant: `cp` may be a group
        ("recompute > 1", None),
    ],
)
def test_a_condition_on_the_size_of_an_axis_is_decided_and_no_other(
    test: str, expected: bool | None
) -> None:
    assert decided(ast.parse(test, mode="eval").body, AXES) is expected


def test_the_variable_of_a_loop_is_no_axis() -> None:
    assert decided(ast.parse("cp > 1", mode="eval").body, AXES, {"cp"}) is None


PROGRAM = """\
def apply(model, axes):
    if axes.tp.size > 1:
        _apply_tensor(model)
    if axes.cp.size > 1:
        _apply_context(model)
    else:
        whole(model)
    if axes.cp.size == 1:
        return model
    return ring(model)

def _apply_tensor(model):
    mark(model)

def _apply_context(model):
    if planted:
        mark(model)

def whole(model):
    mark(model)
"""


def ran(folder: Path, axes: dict[str, int], *lines: int) -> list[int]:
    """The lines of the program that are known not to have run."""
    path = folder / "apply.py"
    path.write_text(PROGRAM)
    known = Ran(frozenset(relative(f"{path}:{line}") for line in lines), axes=axes)
    numbers = range(1, len(PROGRAM.splitlines()) + 1)
    return [number for number in numbers if known.line(f"{path}:{number}") is False]


def test_a_branch_that_the_point_excludes_did_not_run_nor_what_only_it_calls(
    tmp_path: Path,
) -> None:
    assert ran(tmp_path, {"tp": 2, "cp": 1}) == [5, 10, 15, 16, 17]
    assert ran(tmp_path, {"tp": 1, "cp": 2}) == [3, 7, 9, 12, 13]


def test_a_line_that_the_trace_has_ran_whatever_the_text_says(tmp_path: Path) -> None:
    assert ran(tmp_path, {"tp": 2, "cp": 1}, 5, 10, 17) == [7]
    assert ran(tmp_path, {}) == []
