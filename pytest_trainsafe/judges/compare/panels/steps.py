"""The lines of a function that lead to others: conditions, jumps, and what makes its result.

From the text of the function; called by `marks`, which leaves out those that did not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from pytest_trainsafe.judges.compare.localize.code.ran import JUMPS, ends_before
from pytest_trainsafe.report.flow import reaching
from pytest_trainsafe.report.syntax import Function


def steps_to(function: Function, lines: Iterable[int]) -> Iterator[int]:
    """The conditions on which lines of a function run, and what may jump over them.

    Those are the conditions around a line, and the conditions before it whose branch ends the
    function or the turn of a loop, with the jump itself.
    """
    for line in lines:
        for node in ast.walk(function):
            if isinstance(node, ast.If | ast.While) and _in_branch(node, line):
                yield node.lineno
        for each in ends_before(function, line):
            yield each.lineno
            yield each.body[-1].lineno


def result_of(function: Function) -> Iterator[int]:
    """The statements of a function that make what it returns, and what they depend on.

    All its statements if it returns nothing.
    """
    own = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and node is not function and not _is_docstring(node)
    ]
    makes = {id(node) for node in reaching(function)}
    lines = [
        node.lineno
        for node in own
        if not isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try | Function)
        and (not makes or isinstance(node, JUMPS) or any(id(x) in makes for x in ast.walk(node)))
    ]
    yield from lines
    yield from steps_to(function, lines)
    yield from (
        node.lineno
        for node in own
        if isinstance(node, ast.For | ast.With)
        and any(node.lineno < line <= (node.end_lineno or 0) for line in lines)
    )


def _in_branch(node: ast.If | ast.While, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.end_lineno or 0)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
