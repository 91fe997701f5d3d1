"""Constants of a graph: values that the graph holds, that the user states, or that are zero."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from pytest_trainsafe.arithmetic import Numbers
from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import CannotSayError
from pytest_trainsafe.judges.refine.graphs.graph import CONSTANT, Argument, Graph, Node

_WHOLE = {"b8": torch.bool, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16,
          "i8": torch.int8, "u8": torch.uint8}  # fmt: skip


def is_float(node: Node) -> bool:
    """Whether a node's tensor has floats, as far as the graph states it."""
    return node.dtype not in _WHOLE


def whole_dtype(node: Node) -> torch.dtype:
    """The torch dtype of a node's integers or masks."""
    return _WHOLE[node.dtype or "i64"]


def constants(
    graph: Graph, given: Collection[str], stated: Mapping[str, float], n: Numbers
) -> dict[str, torch.Tensor]:
    """The constants of a graph by the names of their nodes, but for those that are `given`.

    A scalar whose value nobody states is zero, as masked indices and values are; `unstated` names
    them.  Raises CannotSayError for a larger one.
    """
    found = {}
    for node in graph.nodes:
        if node.operator == CONSTANT and node.name not in given:
            found[node.name] = _tensor(graph, node, stated, n)
    return found


def unstated(graph: Graph, stated: Collection[str]) -> list[str]:
    """The names of scalars that are taken as zero, because `stated` does not have them."""
    return [
        node.name
        for node in graph.nodes
        if node.operator == CONSTANT and len(node.args) == 1 and node.name not in stated
    ]


def _tensor(graph: Graph, node: Node, stated: Mapping[str, float], n: Numbers) -> torch.Tensor:
    described = _described(graph, node)
    if len(node.args) > 1:
        value: Argument = node.args[1]
    elif node.name in stated:
        value = stated[node.name]
    elif described.shape in ((), None):
        value = 0
    else:
        raise CannotSayError(
            f"{graph.at(node)}: the values of the constant {shown(node.name)} are not in the "
            "graph; give a relation for it, as for an input"
        )
    plain = torch.tensor(value, dtype=torch.float64)
    if not is_float(described):
        return plain.to(whole_dtype(described))
    numbers = [n.lift(each) for each in plain.reshape(-1).tolist()]
    return torch.stack(numbers).reshape(plain.shape) if numbers else plain


def _described(graph: Graph, node: Node) -> Node:
    """The node that states the constant's dtype: itself, or the one that copies it."""
    if node.dtype is not None:
        return node
    for other in graph.nodes:
        if node.name in other.inputs and other.short.startswith("aten.lift_fresh"):
            return other
    return node
