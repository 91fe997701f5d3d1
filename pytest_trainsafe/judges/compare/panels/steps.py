"""The lines of a function that lead to others: conditions, loops, jumps, and what makes its result.

From the text of the function; called by `marks`, which leaves out those that did not run.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

from pytest_trainsafe.judges.compare.localize.code.ran import JUMPS, ends_before
from pytest_trainsafe.report.flow import reaching
from pytest_trainsafe.report.syntax import Function

#: The share of the statements of a function above which lines that lead to others say nothing.
_MOST_SHARE = 2 / 3


def steps_to(function: Function, lines: Iterable[int]) -> Iterator[int]:
    """The conditions on which lines of a function run, and what may jump over them.

    Those are the conditions and loops around a line, and the conditions before it whose branch ends
    the function or the turn of a loop, with the jump itself.  The flags that a condition reads lead
    there too: the lines that assign them, and the other conditions that read them.
    """
    tests: list[ast.expr] = []
    for line in lines:
        for node in ast.walk(function):
            if isinstance(node, ast.If | ast.While) and _in_branch(node, line):
                tests.append(node.test)
                yield node.lineno
            elif isinstance(node, ast.For) and _in_branch(node, line):
                yield node.lineno
        for each in ends_before(function, line):
            yield each.lineno
            if not isinstance(each.body[-1], ast.Raise):
                yield each.body[-1].lineno
    yield from _flags(function, tests)


def _flags(function: Function, tests: Iterable[ast.expr]) -> Iterator[int]:
    """The lines that make the flags which conditions read, and the other conditions that do."""
    flags = {
        node.targets[0].id: node
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.BoolOp | ast.Compare | ast.UnaryOp)
    }
    left = [name for test in tests for name in names_read(test)]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name in flags and name not in found:
            found.add(name)
            left += names_read(flags[name].value)
    yield from (flags[name].lineno for name in found)
    for node in ast.walk(function):
        if isinstance(node, ast.If) and found & {*names_read(node.test)}:
            yield node.lineno


def loops(function: Function) -> Iterator[int]:
    """The lines that begin the loops of a function."""
    yield from (each.lineno for each in ast.walk(function) if isinstance(each, ast.For | ast.While))


def uses_of(function: Function, lines: Collection[int]) -> Iterator[int]:
    """The later lines of a function that use what the statements at `lines` assign."""
    made: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno in lines:
            made[node.id] = min(made.get(node.id, node.lineno), node.lineno)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in made:
            yield from (at for at in (node.lineno,) if at > made[node.id])


def never_raised(function: Function) -> Iterator[int]:
    """The lines of branches that end in `raise`, which a Run that completes does not run.

    None of those inside of `try`, where something may catch what they raise.
    """
    caught = [each for each in ast.walk(function) if isinstance(each, ast.Try)]
    inside = {id(node) for each in caught for node in ast.walk(each)}
    for node in ast.walk(function):
        if isinstance(node, ast.If) and id(node) not in inside:
            last = node.body[-1]
            if isinstance(last, ast.Raise):
                yield from range(node.body[0].lineno, (last.end_lineno or 0) + 1)


def apart(function: Function, some: Collection[int], others: Iterable[int]) -> Iterator[int]:
    """The lines of `others` that stand in another branch of a condition than one of `some`."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and node.orelse:
            ends = range(node.orelse[0].lineno, (node.end_lineno or 0) + 1)
            arms = range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1), ends
            for arm, other in (arms, arms[::-1]):
                if any(line in arm for line in some):
                    yield from (line for line in others if line in other)


def tell_apart(function: Function, steps: Collection[int]) -> bool:
    """Whether `steps` are few enough of the statements of a function to say something."""
    statements = [each for each in _own(function) if not isinstance(each, Function)]
    return len(steps) <= _MOST_SHARE * len({each.lineno for each in statements})


def names_read(node: ast.AST) -> Iterator[str]:
    """The local names that an expression or statement reads."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            yield each.id


def result_of(function: Function) -> Iterator[int]:
    """The statements of a function that make what it returns, and what they depend on.

    All its statements if it returns nothing.
    """
    own = _own(function)
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


def _own(function: Function) -> list[ast.stmt]:
    """The statements of a function, without texts such as its docstring."""
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and node is not function and not _is_docstring(node)
    ]


def _in_branch(node: ast.If | ast.While | ast.For, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.end_lineno or 0)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
