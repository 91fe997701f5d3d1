"""Symbolic sizes of graphs, such as s0 and 2*u0: their expressions, and graphs with numbers.

An expression is parsed by a whitelist, costs no more than its length, and is never executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.graph import (
    SYMBOL,
    SYMBOLIC,
    Argument,
    Graph,
    Node,
    Ref,
    leaves,
)

_LONGEST = 400
_LARGEST = 1 << 40
_DEEPEST = 20
_POWER = 4
_BINARY: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
#: The functions that sympy writes in the sizes of graphs.
_CALLS: dict[str, Callable[..., int]] = {
    "Mod": operator.mod, "PythonMod": operator.mod, "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv, "IntTrueDiv": operator.floordiv, "Max": max, "Min": min,
    "Eq": operator.eq, "Ne": operator.ne,
}  # fmt: skip
#: Operators that state something of sizes and give nothing.
STATEMENTS = ("aten._assert_scalar", "aten.sym_constrain_range_for_size",
               "aten.sym_constrain_range", "aten._assert_async")  # fmt: skip


def names_in(text: str) -> frozenset[str]:
    """The symbols in an expression.  Raises GraphError for what is no expression of sizes."""
    found = frozenset(each.id for each in ast.walk(_parsed(text)) if isinstance(each, ast.Name))
    return found - _CALLS.keys()


def evaluate(text: str, values: Mapping[str, int]) -> int:
    """The value of an expression.  Raises GraphError if a symbol is not known."""
    try:
        return _value(_parsed(text), values)
    except (ZeroDivisionError, OverflowError, TypeError):
        raise GraphError(f"the size {shown(text)} has no value for {dict(values)}") from None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST or text.count("(") > _DEEPEST or text.count("-") > _DEEPEST:
        raise GraphError(f"the size {shown(text)} is too long")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise GraphError(f"{shown(text)} is no expression of sizes") from None


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    found: int | None = None
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        found = int(node.value)  # type: ignore[arg-type]
    elif isinstance(node, ast.Name) and node.id in values:
        found = values[node.id]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        inner = _value(node.operand, values)
        found = -inner if isinstance(node.op, ast.USub) else int(not inner)
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, values), _value(node.right, values)
        if not isinstance(node.op, ast.Pow) or 0 <= right <= _POWER:
            found = _BINARY[type(node.op)](left, right)
    elif isinstance(node, ast.Compare) and all(type(each) in _BINARY for each in node.ops):
        sides = [_value(each, values) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        found = int(all(_BINARY[type(each)](left, right) for each, left, right in pairs))
    elif isinstance(node, ast.BoolOp):
        parts = [_value(each, values) for each in node.values]
        found = int(all(parts) if isinstance(node.op, ast.And) else any(parts))
    elif isinstance(node, ast.Call) and not node.keywords and _called(node) in _CALLS:
        found = int(_CALLS[_called(node)](*(_value(each, values) for each in node.args)))
    if found is None or abs(found) > _LARGEST:
        raise GraphError(f"the size {shown(ast.unparse(node))} has no known value")
    return found


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def symbols_of(graphs: Iterable[Graph]) -> list[str]:
    """The symbols in the sizes of graphs, in the order of their names."""
    return sorted({
        name
        for graph in graphs
        for node in graph.nodes
        for size in node.sizes or ()
        if isinstance(size, str)
        for name in names_in(size)
    })  # fmt: skip


def with_numbers(graph: Graph, values: Mapping[str, int]) -> Graph:
    """The graph with numbers in the place of symbols.

    Sizes that a program computes become numbers, and are checked against what the graph states of
    them; those that it reads from a tensor are taken as stated.  Those of which nothing is stated,
    as in captures, are computed when the graph is evaluated.
    Raises GraphError where they contradict each other, or where a size is negative.
    """
    known: dict[str, int] = {}
    nodes: list[Node] = []
    shapes: dict[str, tuple[int, ...] | None] = {}
    for node in graph.nodes:
        if node.short in STATEMENTS:
            continue
        if node.dtype == SYMBOLIC and node.sizes is not None:
            known[node.name] = _scalar(graph, node, values, known, shapes)
            continue
        shape = node.shape
        if node.sizes is not None:
            shape = tuple(
                evaluate(each, values) if isinstance(each, str) else each for each in node.sizes
            )
            if min(shape, default=0) < 0:
                raise GraphError(f"{graph.at(node)}: {node} has the shape {list(shape)}")
        shapes[node.name] = shape
        nodes.append(
            replace(
                node,
                shape=shape,
                sizes=None,
                args=tuple(_replaced(each, known) for each in node.args),
                kwargs={key: _replaced(each, known) for key, each in node.kwargs.items()},
            )
        )
    outputs = tuple(None if each in known else each for each in graph.outputs)
    return Graph(tuple(nodes), outputs, graph.name)


def _scalar(
    graph: Graph,
    node: Node,
    values: Mapping[str, int],
    known: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...] | None],
) -> int:
    (size,) = node.sizes or ("",)
    stated = evaluate(size, values) if isinstance(size, str) else size
    computed: int | None = None
    if node.operator == SYMBOL and isinstance(node.args[0], str):
        computed = evaluate(node.args[0], known)
    elif node.short == "aten.sym_size" and node.inputs:
        shape, dim = shapes.get(node.inputs[0]), node.args[1] if len(node.args) > 1 else 0
        if shape and isinstance(dim, int) and -len(shape) <= dim < len(shape):
            computed = shape[dim]
    if computed is not None and computed != stated:
        raise GraphError(
            f"{graph.at(node)}: {shown(node.name)} is stated to be {shown(size)} = {stated}, but "
            f"is {computed}"
        )
    return stated


def _replaced(argument: Argument, known: Mapping[str, int]) -> Argument:
    if isinstance(argument, tuple):
        return tuple(_replaced(each, known) for each in argument)
    if isinstance(argument, Ref):
        return known.get(argument.name, argument)
    return argument


def read_from_tensors(graph: Graph) -> list[str]:
    """The sizes that a program reads from tensors, whose values are taken as stated."""
    computed = ("aten.sym_size", SYMBOL, "input")
    return [
        node.name
        for node in graph.nodes
        if node.dtype == SYMBOLIC
        and node.sizes is not None
        and node.short not in computed
        and any(leaves(node.args))
    ]
