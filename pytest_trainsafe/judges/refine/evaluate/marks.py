"""The integers that a graph compares its inputs with, or that a loss or an embedding ignores.

Inputs are drawn with each of them, which random integers would rarely contain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_trainsafe.judges.refine.evaluate.constants import is_float
from pytest_trainsafe.judges.refine.evaluate.draw import HANDED_ON
from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node, Ref
from pytest_trainsafe.judges.refine.problem.problem import Problem

#: How far the integers of both outcomes of a comparison are from the number that it takes.
_COMPARED = {
    "aten.eq": (0,),
    "aten.ne": (0,),
    "aten.lt": (-1, 0),
    "aten.ge": (-1, 0),
    "aten.le": (0, 1),
    "aten.gt": (0, 1),
}
#: Operators that ignore an integer, with the places of the integers and of the one.
_IGNORED = {
    "aten.nll_loss_forward": (1, 4),
    "aten.nll_loss_backward": (2, 5),
    "aten.nll_loss2d_forward": (1, 4),
    "aten.cross_entropy_loss": (1, 4),
    "aten.embedding": (1, 2),
    "aten.embedding_dense_backward": (1, 3),
}
#: Operators that add a number to integers, with its sign.
_MOVED = {"aten.add": 1, "aten.sub": -1}

#: The inputs whose integers a tensor holds, each with what is added to them.
Origin = frozenset[tuple[str, int]]


def marks(problem: Problem) -> dict[str, tuple[int, ...]]:
    """For integer inputs by name, the numbers that any graph compares them with, or ignores."""
    nodes = problem.sequential.by_name
    whole = [name for name in problem.inputs if not is_float(nodes[name])]
    if not whole:
        return {}
    own = {name: name for name in whole}
    parts = {each: name for name in whole for each in problem.inputs[name].names}
    found = [
        mark
        for graph, names in ((problem.sequential, own), *((rank, parts) for rank in problem.ranks))
        for mark in _marks(graph, names)
    ]
    return {name: tuple(sorted({mark for each, mark in found if each == name})) for name in whole}


def _marks(graph: Graph, names: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    origins: dict[str, Origin] = {}
    for node in graph.nodes:
        short = node.short.removesuffix("_")
        if node.name in names:
            origins[node.name] = frozenset({(names[node.name], 0)})
        elif short in _MOVED and (by := _number(node, 1)) is not None:
            before = _taken(node, 0, origins)
            origins[node.name] = frozenset((name, at + _MOVED[short] * by) for name, at in before)
        elif short in HANDED_ON:
            empty: Origin = frozenset()
            origins[node.name] = empty.union(*(origins.get(each, empty) for each in node.inputs))
        elif short in _COMPARED or short in _IGNORED:
            taken, place = _IGNORED.get(short, (0, 1))
            number = _number(node, place)
            if number is None:
                continue
            for name, at in _taken(node, taken, origins):
                for way in _COMPARED.get(short, (0,)):
                    yield name, number - at + way


def _taken(node: Node, place: int, origins: Mapping[str, Origin]) -> Origin:
    argument = node.args[place] if place < len(node.args) else None
    return origins.get(argument.name, frozenset()) if isinstance(argument, Ref) else frozenset()


def _number(node: Node, place: int) -> int | None:
    argument = node.args[place] if place < len(node.args) else None
    return argument if type(argument) is int else None
