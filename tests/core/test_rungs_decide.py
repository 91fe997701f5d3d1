"""The name of a dtype decides nothing outside the table of rungs, and merges know its numbers.

A rung that a project adds has another name, so code that compares names would treat it wrongly.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_trainsafe
from pytest_trainsafe.core.rungs.table import BUILT_IN_RUNGS

PACKAGE = Path(pytest_trainsafe.__file__).parent

#: The rooms whose code judges, or works for every rung.
ROOMS = (
    *("align", "annotations", "config", "core", "frameworks", "init", "record", "runs", "sweep"),
    *("trace", "judges/compare", "judges/metamorphic"),
)

NAMES = {*BUILT_IN_RUNGS, "half", "double"}

#: Where torch's dtype of a tensor, not the rung, decides, by file and the name of the dtype.
OF_TENSORS = {
    # The inputs of functions with jumps, which are computed in float64 in a Run that is not exact.
    ("judges/compare/instrument/jumps.py", "float64"): "a mode that only noisy Runs have",
}


def files() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((PACKAGE / room).rglob("*.py"))


def deciding(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a comparison, a look-up or a match compares with."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                yield from (node.left, *node.comparators)
            case ast.Dict():
                yield from filter(None, node.keys)
            case ast.MatchValue():
                yield node.value
            case ast.Subscript(value=value) if ast.unparse(value) != "Literal":
                yield node.slice


def names_in(expression: ast.expr) -> Iterator[str]:
    """The names of dtypes that an expression spells as text, also within a tuple or a set."""
    within = [expression]
    if isinstance(expression, ast.Tuple | ast.List | ast.Set):
        within = expression.elts
    for each in within:
        if isinstance(each, ast.Constant) and each.value in NAMES:
            yield str(each.value)


def decisions(source: str) -> list[tuple[int, str]]:
    """The lines of a source where the name of a dtype decides, each with the name."""
    found = deciding(ast.parse(source))
    return [(each.lineno, name) for each in found for name in names_in(each)]


def test_no_name_of_a_dtype_decides_outside_the_table() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} compares with {name!r}"
        for path in files()
        for line, name in decisions(path.read_text())
    ]

    assert not found, "ask the Rung instead: " + "; ".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'if dtype == "float64": pass',
        'if "float64" not in dtypes: pass',
        'if dtype in ("float64", "float32"): pass',
        'allowed = {"float64": 1e-6}[dtype]',
        'match dtype:\n    case "bfloat16": pass',
        'allowed = limits["float16"]',
    ],
)
def test_a_decision_by_name_is_found(source: str) -> None:
    assert len(decisions(source)) >= 1


def test_comparison_asks_no_tensor_whether_it_is_float64() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), each.attr)
        for path in files()
        if path.is_relative_to(PACKAGE / "judges/compare")
        for each in deciding(ast.parse(path.read_text()))
        if isinstance(each, ast.Attribute)
        and each.attr in NAMES
        and ast.unparse(each.value) == "torch"
    }

    assert found == OF_TENSORS.keys()


def test_every_merge_outside_align_is_given_the_arithmetic_of_the_rung() -> None:
    calls = [
        (path.relative_to(PACKAGE), node)
        for path in files()
        if not path.is_relative_to(PACKAGE / "align")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("merge", "WrongTensor")
    ]

    assert len(calls) >= 9
    for path, call in calls:
        given = {keyword.arg for keyword in call.keywords}
        assert "numbers" in given, f"{path}:{call.lineno}"
