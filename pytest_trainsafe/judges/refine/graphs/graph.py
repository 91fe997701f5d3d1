"""A graph of operators: one rank's step in the order in which it executes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import GraphError

#: Operators that are not torch's.
INPUT, CONSTANT, GETITEM, SYMBOL = "input", "constant", "getitem", "symbol"
#: States that a mask has one element, and which: its arguments are both.
CONDITION = "condition"
#: The dtype of a node that is a size, not a tensor.
SYMBOLIC = "Sym"

#: The most nodes of a graph, and elements of a tensor that is named in one.
MAX_NODES = 500_000


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is the result of another node."""

    name: str


@dataclass(frozen=True, slots=True)
class Word:
    """An argument that is a name: "torch.float32", "device", or an operator of torch.ops."""

    text: str


#: What an operator is called with; a tuple stands for a list.
Argument = None | bool | int | float | str | Ref | Word | tuple["Argument", ...]


@dataclass(frozen=True)
class Node:
    """One operator with its arguments.

    `operator` is "input", "constant", "getitem", "symbol" for arithmetic of sizes, or a name such
    as "aten.mm.default".  `shape` and `dtype` are those that the graph states, or None; if a size
    is symbolic, `sizes` has the shape, with expressions such as "2*s0", and `shape` is None.
    `source` is the "file:line" of the program, `module` the path of the module, and `line` the line
    of the graph's text; "" or 0 if not known.
    """

    name: str
    operator: str
    args: tuple[Argument, ...] = ()
    kwargs: Mapping[str, Argument] = field(default_factory=dict)
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    source: str = ""
    module: str = ""
    line: int = 0
    sizes: tuple[int | str, ...] | None = None

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the nodes whose results this one takes, in order."""
        return tuple(each.name for each in leaves((self.args, self.kwargs)) if type(each) is Ref)

    @cached_property
    def short(self) -> str:
        """The operator without its overload: "aten.mm"."""
        parts = self.operator.split(".")
        return ".".join(parts[:2]) if len(parts) > 2 else self.operator

    def __str__(self) -> str:
        at = self.source or (f"line {self.line}" if self.line else "")
        return f"{self.name} = {self.short}" + (f" ({at})" if at else "")


@dataclass(frozen=True)
class Graph:
    """Nodes in the order of execution; `outputs` are the names of results, None for a missing one.

    Raises GraphError if a name is used before it is defined, so that there is no cycle, or defined
    twice, or if an output is not a node.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[str | None, ...]
    name: str = "graph"

    def __post_init__(self) -> None:
        if len(self.nodes) > MAX_NODES:
            raise GraphError(f"{self.name} has {len(self.nodes)} nodes; the limit is {MAX_NODES}")
        seen: set[str] = set()
        for node in self.nodes:
            for each in node.inputs:
                if each not in seen:
                    raise GraphError(
                        f"{self.at(node)}: {shown(node.name)} takes {shown(each)}, which no "
                        "earlier node defines; the graph is cyclic or truncated"
                    )
            if node.name in seen:
                raise GraphError(f"{self.at(node)}: {shown(node.name)} is defined twice")
            seen.add(node.name)
        for output in self.outputs:
            if output is not None and output not in seen:
                raise GraphError(f"{self.name}: the output {shown(output)} is not a node")
        if not self.outputs:
            raise GraphError(f"{self.name} returns nothing")

    def at(self, node: Node) -> str:
        """The place of a node, for messages: "rank0.txt:17"."""
        return f"{self.name}:{node.line}" if node.line else self.name

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.operator == INPUT)

    @cached_property
    def items(self) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """The shapes that the items of a tuple state, by the name of the tuple's node."""
        found: dict[str, tuple[tuple[int, ...], ...]] = {}
        for node in self.nodes:
            if node.operator == GETITEM and node.shape is not None:
                (whole,) = node.inputs
                found[whole] = (*found.get(whole, ()), node.shape)
        return found

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of everything that decides what the graph computes."""
        said = [
            [node.name, node.operator, _plain(node.args), _plain(dict(node.kwargs)), node.dtype,
             node.shape, *([node.sizes] if node.sizes else ())]
            for node in self.nodes
        ]  # fmt: skip
        text = json.dumps([said, self.outputs], separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def leaves(tree: object) -> Iterator[object]:
    """The arguments in nested tuples and mappings."""
    if isinstance(tree, tuple | list):
        for each in tree:
            yield from leaves(each)
    elif isinstance(tree, Mapping):
        for each in tree.values():
            yield from leaves(each)
    else:
        yield tree


def _plain(tree: object) -> object:
    """Arguments as JSON, each kind told apart from the others."""
    if isinstance(tree, tuple | list):
        return [_plain(each) for each in tree]
    if isinstance(tree, dict):
        return {key: _plain(each) for key, each in tree.items()}
    if isinstance(tree, Ref):
        return {"%": tree.name}
    if isinstance(tree, Word):
        return {"$": tree.text}
    return {"float": repr(tree)} if isinstance(tree, float) else tree
