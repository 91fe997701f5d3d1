"""The integers of a node that are sizes: of views, slices, splits, factories and bounds of indices.

torch's schemas tell: the type of a size is SymInt.  The exceptions are listed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from pytest_trainsafe.compat.operators import OpOverload, schema_of
from pytest_trainsafe.judges.refine.evaluate.constants import is_float
from pytest_trainsafe.judges.refine.graphs.graph import (
    CONSTANT,
    GETITEM,
    INPUT,
    Argument,
    Graph,
    Node,
    Ref,
)

Change = Callable[[int], int]

#: SymInt arguments that are no sizes.
_NOT_SIZES = {"dim", "index", "step", "repeats", "shifts", "padding_idx", "chunks", "groups",
              "offset", "stride", "storage_offset"}  # fmt: skip
_SYMBOLIC = re.compile(r"SymInt\S* (\w+)")
#: Operators on integers by whose constants a program tells parts of a vocabulary apart.
_BOUNDS = frozenset(
    f"aten.{name}"
    for name in ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "rsub", "mul", "remainder",
                 "clamp", "clamp_min", "clamp_max", "floor_divide")
)  # fmt: skip
_ARANGE = "aten.arange"
#: Factors of numbers, such as the count of a mean.
_FACTORS = ("aten.div", "aten.mul")
_END = 1 << 62
_SLICES = ("aten.slice", "aten.slice_scatter")
#: Operators whose results are parts of their first argument, or that write such a part.
PARTING = ("aten.split_with_sizes", "aten.split", "aten.chunk", "aten.unbind", "aten.slice",
           "aten.unsafe_split", "aten.unsafe_split_with_sizes", "aten.slice_scatter")  # fmt: skip


def is_size(value: object) -> bool:
    """Whether an integer can be a size that shrinks."""
    return type(value) is int and 1 < abs(value) < _END


def changed(graph: Graph, node: Node, change: Change, position: Change | None = None) -> Node:
    """The node with each of its sizes changed, those of its shape too.

    `position` changes where a slice starts and ends inside of a dimension; None stands for
    `change`.
    """
    shape = None if node.shape is None else tuple(map(_applied(change), node.shape))
    if node.operator in (INPUT, CONSTANT, GETITEM):
        return replace(node, shape=shape)
    names = _names(node.operator)
    inside = set(positions_of(graph, node))

    def of(place: int) -> Change:
        return position if position and place in inside else change

    args = tuple(
        _changed(graph, node, names[place] if place < len(names) else "", each, of(place))
        for place, each in enumerate(node.args)
    )
    kwargs: Mapping[str, Argument] = {
        key: _changed(graph, node, key, each, change) for key, each in node.kwargs.items()
    }
    return replace(node, shape=shape, args=args, kwargs=kwargs)


def resized(graph: Graph, node: Node, small: Mapping[int, int]) -> Node:
    """The node with small sizes; a negative key is that of a position."""
    return changed(
        graph,
        node,
        lambda size: small.get(size, size),
        lambda place: small.get(-place, small.get(place, place)),
    )


def positions_of(graph: Graph, node: Node) -> dict[int, int]:
    """The arguments of a slice that are positions inside of a dimension, by their places.

    Not the end of the dimension, which is a size, nor what is counted from the end.
    """
    if node.short not in _SLICES or not node.inputs:
        return {}
    first = 3 if node.short == _SLICES[1] else 2
    shape = graph.by_name[node.inputs[0]].shape
    dim = node.args[first - 1] if len(node.args) >= first else 0
    if type(dim) is not int:
        return {}
    if shape is None or not -len(shape) <= dim < len(shape):
        return {}
    found = ((place, node.args[place]) for place in (first, first + 1) if place < len(node.args))
    return {
        place: value
        for place, value in found
        if type(value) is int and is_size(value) and 0 < value < shape[dim]
    }


def bounds_of(graph: Graph, node: Node) -> list[int]:
    """The integers with which a node compares integers, or by which it shifts them."""
    if node.short not in _BOUNDS or _on_floats(graph, node):
        return []
    return [each for each in node.args if type(each) is int and is_size(each)]


def factor_of(graph: Graph, node: Node) -> int | None:
    """A whole number by which a node divides or multiplies floats; None if it has none."""
    if node.short not in _FACTORS or len(node.args) < 2 or not _on_floats(graph, node):
        return None
    value = node.args[1]
    if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
        return int(value)
    return None


def _applied(change: Change) -> Change:
    def apply(value: int) -> int:
        if not is_size(value):
            return value
        return change(value) if value > 0 else -change(-value)

    return apply


def _changed(graph: Graph, node: Node, name: str, argument: Argument, change: Change) -> Argument:
    apply = _applied(change)
    if _sized(node, name):
        if isinstance(argument, tuple):
            return tuple(apply(each) if type(each) is int else each for each in argument)
        return apply(argument) if type(argument) is int else argument
    if type(argument) is int and node.short in _BOUNDS and not _on_floats(graph, node):
        return apply(argument)
    if name == "other" and (factor := factor_of(graph, node)) is not None:
        return type(argument)(apply(factor)) if isinstance(argument, int | float) else argument
    return argument


def _sized(node: Node, name: str) -> bool:
    if name in _NOT_SIZES:
        return False
    if node.short == _ARANGE:
        return name in ("start", "end")
    sizes = _size_names(node.operator)
    if sizes is None:  # A kernel of another package: its lists of integers are shapes.
        return "c10d" not in node.operator
    return name in sizes


def _on_floats(graph: Graph, node: Node) -> bool:
    refs = [each for each in node.args if isinstance(each, Ref)]
    return any(is_float(graph.by_name[each.name]) for each in refs)


@lru_cache(maxsize=4096)
def _schema(operator: str) -> Any:
    """The schema of an operator of torch, or None."""
    if not operator.startswith("aten."):
        return None
    found: Any = torch.ops
    for part in operator.split("."):
        found = getattr(found, part, None)
    return schema_of(found) if isinstance(found, OpOverload) else None


def _size_names(operator: str) -> Collection[str] | None:
    """The arguments of an operator that are sizes; None if torch does not have it."""
    schema = _schema(operator)
    if schema is None:
        return () if operator.startswith("aten.") else None
    return _SYMBOLIC.findall(str(schema).rpartition(" -> ")[0])


def _names(operator: str) -> list[str]:
    schema = _schema(operator)
    return [] if schema is None else [each.name for each in schema.arguments]
