"""What the axis values of a Point decide: the conditions of a program that compare them.

Only what the text shows is decided: `cp.size > 1`, `config.tp_size == 1`, `point["zero"]`.  Called
by `ran`, for lines of which the trace knows nothing.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pytest_trainsafe.core.point import AxisValue

#: What follows the name of an axis in a name that stands for its size, or for its ranks.
_ENDS = tuple(f"_{word}" for word in ("world_size", "degree", "group", "mesh", "size"))
#: The attributes and methods that give the size of what stands for the ranks of an axis.
_SIZES = frozenset({"size", "world_size", "degree", "get_world_size"})

_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


def decided(
    test: ast.expr, axes: Mapping[str, AxisValue], bound: Collection[str] = ()
) -> bool | None:
    """Whether a condition holds at a Point with these axis values; None if they do not decide it.

    `bound` are the names that loops give values, which are not those of an axis.
    """
    if isinstance(test, ast.BoolOp):
        parts = [decided(each, axes, bound) for each in test.values]
        ends = isinstance(test.op, ast.Or)  # the value of a part that decides the whole
        if ends in parts:
            return ends
        return None if None in parts else not ends
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decided(test.operand, axes, bound)
        return None if inner is None else not inner
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        compare = _COMPARED.get(type(test.ops[0]))
        sides = [_value(each, axes, bound) for each in (test.left, test.comparators[0])]
        constants = any(isinstance(each, ast.Constant) for each in (test.left, *test.comparators))
        alike = all(isinstance(each, int) for each in sides) or type(sides[0]) is type(sides[1])
        if compare is None or None in sides or not constants or not alike:
            return None
        return compare(*sides)
    value = _value(test, axes, bound)
    # The number of ranks of an axis is not what `if cp:` asks, where `cp` may be an object.
    return value if isinstance(value, bool) else None


def _value(
    node: ast.expr, axes: Mapping[str, AxisValue], bound: Collection[str]
) -> AxisValue | None:
    """The value of a constant, or of the axis whose size an expression gives; None for others."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, bool | int | str) else None
    if isinstance(node, ast.Name):
        return None if node.id in bound else _named(node.id, axes)
    if isinstance(node, ast.Attribute):
        return _value(node.value, axes, bound) if node.attr in _SIZES else _named(node.attr, axes)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return _named(str(node.slice.value), axes)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        return _value(node.func.value, axes, bound) if node.func.attr in _SIZES else None
    return None


def _named(name: str, axes: Mapping[str, AxisValue]) -> AxisValue | None:
    end = next((each for each in _ENDS if name.endswith(each)), "")
    return axes.get(name.removesuffix(end))
