"""The integers of a node that are sizes: of its shape, of views, slices, splits and factories.

torch's schemas tell: the type of a size is SymInt.  The exceptions are listed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

#: The name of the site of a shape's size; the others have the names of arguments.
SHAPE = "shape"


@dataclass(frozen=True, slots=True)
class Site:
    """A size in a node: its value, the argument that has it, and its place in a list of them.

    A `bound` is compared with integers or shifts them, and a `factor` scales floats.
    """

    value: int
    name: str
    place: int = 0
    count: int = 1
    bound: bool = False
    factor: bool = False


Change = Callable[[Site], int]

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


def is_size(value: object) -> bool:
    """Whether an integer can be a size that shrinks."""
    return type(value) is int and 1 < abs(value) < _END


def sites(graph: Graph, node: Node) -> list[Site]:
    """The sizes of a node in the order in which `resized` replaces them."""
    found: list[Site] = []

    def note(site: Site) -> int:
        found.append(site)
        return site.value

    changed(graph, node, note)
    return found


def resized(graph: Graph, node: Node, small: Sequence[int]) -> Node:
    """The node with small sizes in the place of its own, in their order.

    Raises ValueError if there are more or fewer of them.
    """
    left = iter(small)
    result = changed(graph, node, lambda _: _next(left))
    if next(left, None) is not None:
        raise ValueError("more sizes than the node has")
    return result


def _next(left: Iterator[int]) -> int:
    for each in left:
        return each
    raise ValueError("fewer sizes than the node has")


def changed(graph: Graph, node: Node, change: Change) -> Node:
    """The node with each of its sizes changed, those of its shape first."""
    shape = node.shape
    if shape is not None:
        shape = _list(shape, SHAPE, change)
    if node.operator in (INPUT, CONSTANT, GETITEM):
        return replace(node, shape=shape)
    names = _names(node.operator)
    args = tuple(
        _changed(graph, node, names[place] if place < len(names) else "", each, change)
        for place, each in enumerate(node.args)
    )
    kwargs: Mapping[str, Argument] = {
        key: _changed(graph, node, key, each, change) for key, each in node.kwargs.items()
    }
    return replace(node, shape=shape, args=args, kwargs=kwargs)


def _list(values: Sequence[Any], name: str, change: Change) -> tuple[Any, ...]:
    return tuple(
        _one(Site(each, name, place, len(values)), change) if type(each) is int else each
        for place, each in enumerate(values)
    )


def _one(site: Site, change: Change) -> int:
    if not is_size(site.value):
        return site.value
    if site.value > 0:
        return change(site)
    return -change(replace(site, value=-site.value))


def _changed(graph: Graph, node: Node, name: str, argument: Argument, change: Change) -> Argument:
    if _sized(node, name):
        if isinstance(argument, tuple):
            return _list(argument, name, change)
        return _one(Site(argument, name), change) if type(argument) is int else argument
    if type(argument) is int and node.short in _BOUNDS and not _on_floats(graph, node):
        return _one(Site(argument, name, bound=True), change)
    if name == "other" and (factor := _factor_of(graph, node)) is not None:
        kind = float if isinstance(argument, float) else int
        return kind(_one(Site(factor, name, factor=True), change))
    return argument


def _factor_of(graph: Graph, node: Node) -> int | None:
    """A whole number by which a node divides or multiplies floats; None if it has none."""
    if node.short not in _FACTORS or len(node.args) < 2 or not _on_floats(graph, node):
        return None
    value = node.args[1]
    if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
        return int(value)
    return None


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


@lru_cache(maxsize=4096)
def _size_names(operator: str) -> Collection[str] | None:
    """The arguments of an operator that are sizes; None if torch does not have it."""
    schema = _schema(operator)
    if schema is None:
        return () if operator.startswith("aten.") else None
    return _SYMBOLIC.findall(str(schema).rpartition(" -> ")[0])


@lru_cache(maxsize=4096)
def _names(operator: str) -> list[str]:
    schema = _schema(operator)
    return [] if schema is None else [each.name for each in schema.arguments]
