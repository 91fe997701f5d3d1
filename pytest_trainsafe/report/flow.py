"""How directly the calls of a function make what it returns, from its text alone.

Called by `report.called`, which shows the most direct ones first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pytest_trainsafe.report.syntax import Function

#: The distance of a call whose result does not reach what the function returns.
FAR = 1_000


def distances(function: Function) -> dict[ast.Call, int]:
    """For each call in a function, through how many assignments its result reaches the return.

    It is 0 for a call in a `return` itself, and FAR for one whose result reaches none.
    """
    found = {each: FAR for each in ast.walk(function) if isinstance(each, ast.Call)}
    for value, distance in reaching(function).items():
        for each in ast.walk(value):
            if isinstance(each, ast.Call):
                found[each] = min(found.get(each, FAR), distance)
    return found


def reaching(function: Function) -> dict[ast.AST, int]:
    """The expressions that what a function returns is made of, by the number of assignments."""
    made: list[tuple[set[str], ast.AST]] = [*_assignments(function)]
    names: set[str] = set()
    found: dict[ast.AST, int] = {}
    left: list[tuple[int, ast.AST]] = [
        (0, node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Return | ast.Yield) and node.value is not None
    ]
    while left:
        distance, value = left.pop(0)
        found.setdefault(value, distance)
        for each in ast.walk(value):
            if isinstance(each, ast.Name) and each.id not in names:
                names.add(each.id)
                left += [(distance + 1, of) for to, of in made if each.id in to]
    return found


def _assignments(function: Function) -> Iterator[tuple[set[str], ast.AST]]:
    """The names that each statement of a function gives a value, and what it makes this of.

    A method whose name ends in "_", such as `x.copy_(y)`, gives one to the tensor that has it.
    """
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield _stored(*node.targets), node.value
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            if node.value is not None:
                yield _stored(node.target), node.value
        elif isinstance(node, ast.For):
            yield _stored(node.target), node.iter
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield _stored(node.optional_vars), node.context_expr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr.endswith("_") and isinstance(owner, ast.Name):
                yield {owner.id}, node


def _stored(*targets: ast.expr) -> set[str]:
    """The names that targets of an assignment name: also `x` of `x[0]` and of `x.grad`."""
    return {
        each.id
        for target in targets
        for each in ast.walk(target)
        if isinstance(each, ast.Name) and not _is_index(each, target)
    }


def _is_index(name: ast.Name, target: ast.expr) -> bool:
    """Whether a name only says which element of a target is assigned, as `i` in `x[i]`."""
    slices = (each.slice for each in ast.walk(target) if isinstance(each, ast.Subscript))
    return any(name in ast.walk(each) for each in slices)
