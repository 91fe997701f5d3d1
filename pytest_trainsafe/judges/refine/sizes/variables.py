"""The sizes of graphs as variables: equal sizes of one operator are one, and so along tensors.

Two dimensions that only happen to be equally long stay apart, unless they meet in one operator.
Where slices start or end is a variable of its own: equal positions of one graph are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.sizes.sites import PARTING, changed, positions_of

#: The number of a graph (0 is the sequential one), the name of a node, and a size in it.
Key = tuple[int, str, int]


class Variables:
    """Sets of keys that are one variable; a set is known by its first key."""

    def __init__(self, problem: Problem) -> None:
        self.graphs = [problem.sequential, *problem.ranks]
        self._parents: dict[Key, Key] = {}
        self._local: dict[tuple[int, str], frozenset[int]] = {}
        self._positions: dict[tuple[int, str], dict[int, Key]] = {}
        self._parting: dict[int, list[str]] = {}
        for number, graph in enumerate(self.graphs):
            for node in graph.nodes:
                self._enter(number, graph, node)
        for number, graph in enumerate(self.graphs[2:], 2):
            for node in graph.nodes:
                other = self.graphs[1].by_name.get(node.name)
                if other is not None and (other.operator, other.shape) == (
                    node.operator,
                    node.shape,
                ):
                    self.join(number, node.name, 1, node.name)

    def _enter(self, number: int, graph: Graph, node: Node) -> None:
        own: set[int] = set()

        def note(size: int) -> int:
            own.add(size)
            return size

        changed(graph, node, note, lambda place: place)
        self._positions[number, node.name] = {
            value: (number, "@", value) for value in positions_of(graph, node).values()
        }
        inputs = {name: self.of_result(number, name) for name in node.inputs}
        self._local[number, node.name] = frozenset(own.union(*inputs.values()))
        for name, sizes in inputs.items():
            for size in sizes:
                self.unite((number, node.name, size), (number, name, size))
        if node.short in PARTING and inputs:
            self._parting.setdefault(number, []).append(node.name)
            for size in own:  # The same parts, whoever takes the tensor apart.
                self.unite((number, node.name, size), (number, next(iter(inputs)), size))

    def parting(self, number: int, size: int) -> list[str]:
        """The nodes of a graph that take a tensor apart into parts of which one has this size."""
        names = self._parting.get(number, [])
        return [name for name in names if size in self._local[number, name]]

    def of_result(self, number: int, name: str) -> frozenset[int]:
        """The sizes of a node's result; all that occur in it, if it is a tuple."""
        shape = self.graphs[number].by_name[name].shape
        if shape is None:
            return self._local[number, name]
        return frozenset(size for size in shape if size > 1)

    def local(self, number: int, name: str) -> frozenset[int]:
        """The sizes that occur in a node: in its result, its arguments and its inputs."""
        return self._local[number, name]

    def positions(self, number: int, name: str) -> Mapping[int, Key]:
        """The keys of a node's positions in a dimension, by their values."""
        return self._positions[number, name]

    def note(self, number: int, name: str, sizes: Iterable[int]) -> None:
        """Let sizes occur in a node that only a relation says."""
        known = self._local[number, name]
        self._local[number, name] = known | {size for size in sizes if size > 1}

    def join(self, number: int, name: str, other: int, other_name: str) -> None:
        """Unite the sizes that two nodes have in common."""
        for size in self.local(number, name) & self.local(other, other_name):
            self.unite((number, name, size), (other, other_name, size))

    def unite(self, key: Key, other: Key) -> None:
        first, second = sorted((self.find(key), self.find(other)))
        if first != second:
            self._parents[second] = first

    def find(self, key: Key) -> Key:
        """The first key of the set of a key."""
        root = key
        while root in self._parents:
            root = self._parents[root]
        while key != root:
            self._parents[key], key = root, self._parents[key]
        return root

    def all(self) -> set[Key]:
        """The first keys of all sets."""
        return {
            self.find((number, name, size))
            for (number, name), sizes in self._local.items()
            for size in sizes
        } | {self.find(key) for each in self._positions.values() for key in each.values()}
