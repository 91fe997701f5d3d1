"""The lengths of all dimensions of a problem as unknowns, and each size as a sum of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

from pytest_trainsafe.judges.refine.graphs.graph import CONSTANT, GETITEM, Graph, Node
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.relation import Part, Relation, Step
from pytest_trainsafe.judges.refine.sizes.lengths import Length, Lengths, atoms
from pytest_trainsafe.judges.refine.sizes.operators import Operands, constrain
from pytest_trainsafe.judges.refine.sizes.sites import SHAPE, Site, sites

#: Factors of numbers up to this one keep their value; larger ones shrink with the sizes they count.
_KEPT_FACTOR = 64
#: How many operators back a factor's sizes are looked for.
_BACK = 4
#: The arguments of slices that are positions.
_POSITIONS = ("start", "end")

#: A size: the sum of lengths.  None keeps its value.
Sum = tuple[Length, ...] | None
#: A step of a relation: the sequential tensor, its relation, and the place of the step.
StepKey = tuple[str, Relation, int]

#: Operators that read a tensor at indices, and how many of its dimensions these may count.
_INDEXED = {
    "aten.embedding": 1,
    **dict.fromkeys(
        ("aten.index", "aten.index_select", "aten.gather", "aten.index_put", "aten.index_put_",
         "aten._index_put_impl_", "aten._unsafe_index", "aten.nll_loss_forward", "aten.scatter",
         "aten.scatter_add"), None),
}  # fmt: skip


def _holds_indices(node: Node) -> bool:
    """Whether a node is a constant of integers with their values, such as a batch of tokens."""
    whole = node.dtype in ("i16", "i32", "i64")
    return node.operator == CONSTANT and len(node.args) > 1 and whole and bool(node.shape)


@dataclass
class Unknowns:
    """The lengths of each graph's dimensions by node; those of equal graphs are the same.

    `sums` has, for each graph and node, its sizes in the order of `sites`, and `steps` those of
    the steps of relations.
    """

    problem: Problem
    lengths: Lengths = field(default_factory=Lengths)
    dims: list[dict[str, list[Length]]] = field(default_factory=list)
    sums: list[dict[str, list[Sum]]] = field(default_factory=list)
    steps: dict[StepKey, list[Length]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.problem
        self.graphs = [problem.sequential, *problem.ranks]
        nodes = (node for graph in self.graphs for node in graph.nodes)
        self.valued = any(map(_holds_indices, nodes))
        for number in range(len(self.graphs)):
            self.dims.append(self._dimensions(number))
        for name, relation in (*problem.inputs.items(), *problem.outputs.items()):
            self._related(name, relation)
        for number, graph in enumerate(self.graphs):
            if not self._repeated(number):
                self._constrained(number, graph)
        self.sums = []
        for number, graph in enumerate(self.graphs):
            first = self._repeated(number)
            self.sums.append(self.sums[first] if first else self._of_sites(number, graph))
        self.lengths.alike([each for own in self.dims for dims in own.values() for each in dims])

    def _repeated(self, number: int) -> int:
        """The first of the ranks that has the same graph; 0 if there is none."""
        ranks = range(1, number) if number else ()
        graphs = self.graphs
        return next((each for each in ranks if graphs[each].nodes == graphs[number].nodes), 0)

    def _dimensions(self, number: int) -> dict[str, list[Length]]:
        """New lengths; those of the second and later ranks are the first one's, where nodes are."""
        if first := self._repeated(number):
            return self.dims[first]
        found: dict[str, list[Length]] = {}
        for node in self.graphs[number].nodes:
            if node.shape is None:
                continue
            if number > 1:
                other = self.graphs[1].by_name.get(node.name)
                if other and (other.operator, other.shape) == (node.operator, node.shape):
                    found[node.name] = self.dims[1][node.name]
                    continue
            # The values of a constant are in the graph, and so it keeps its shape.
            valued = node.operator == CONSTANT and len(node.args) > 1
            found[node.name] = [Length(size, fixed=valued) for size in node.shape]
        return found

    def _constrained(self, number: int, graph: Graph) -> None:
        dims = self.dims[number]

        def of(name: str) -> list[Length] | None:
            return dims.get(name)

        for node in graph.nodes:
            if node.shape is not None and node.inputs:
                constrain(self.lengths, Operands(graph, node, of))
            if self.valued and node.short in _INDEXED:
                # An index that is a constant of the graph does not shrink with what it indexes.
                for each in dims.get(node.inputs[0], ())[: _INDEXED[node.short]]:
                    each.root.fixed = True

    # Relations of inputs.

    def _related(self, name: str, relation: Relation) -> None:
        whole = self.dims[0].get(name)
        if whole is None:
            return
        for number in range(1, len(self.graphs)):
            held = [dims for each in relation.names if (dims := self.dims[number].get(each))]
            if not held or any(len(dims) != len(whole) for dims in held):
                continue
            self._walked(name, relation, list(whole), held)

    def _walked(
        self, name: str, relation: Relation, dims: list[Length], held: Sequence[Sequence[Length]]
    ) -> None:
        """Follow the steps from the sequential tensor to the ranks', the outermost first."""
        for place, step in enumerate(relation.steps):
            if step.kind == "permute":
                dims = [dims[step.numbers.index(dim)] for dim in range(len(dims))]
            elif step.kind == "slice":
                start, end = step.numbers[:2]
                found = self.lengths.between(held[0][step.dim], start, end)
                self.lengths.sum(found, dims[step.dim])
                before = self.lengths.between(held[0][step.dim], 0, start)
                self.steps[name, relation, place] = [*before, dims[step.dim]]
                dims[step.dim] = held[0][step.dim]
            elif step.kind == "concat" and not step.axis:
                self.lengths.sum([each[step.dim] for each in held], dims[step.dim])
                return self._others(step.dim, dims, held)
            elif step.kind == "concat":
                dims[step.dim] = self._cut((name, relation, place), step, dims[step.dim])
        for each in held:
            for one, other in zip(dims, each, strict=True):
                self.lengths.unite(one, other)
        return None

    def _others(self, dim: int, dims: list[Length], held: Sequence[Sequence[Length]]) -> None:
        for each in held:
            for number, (one, other) in enumerate(zip(dims, each, strict=True)):
                if number != dim:
                    self.lengths.unite(one, other)

    def _cut(self, key: StepKey, step: Step, whole: Length) -> Length:
        """The length of a rank's part of a dimension."""
        count = self.problem.mesh.axes[step.axis]
        if step.parts:
            return self._fused(key, step.parts, count, whole)
        if whole.size % (count * step.by):
            return whole
        share = Length(whole.size // (count * step.by))
        blocks = self.steps.setdefault(key, [Length(step.by, fixed=step.zigzag)])
        self.lengths.multiply([*blocks, Length(count, fixed=True), share], [whole])
        part = Length(share.size * step.by)
        self.lengths.multiply([*blocks, share], [part])
        return part

    def _fused(self, key: StepKey, parts: Sequence[Part], count: int, whole: Length) -> Length:
        known = self.steps.setdefault(key, [Length(size) for size, _ in parts])
        pieces = []
        for length, (size, copies) in zip(known, parts, strict=True):
            pieces.append(Length(size * (count // copies)))
            self.lengths.times(count // copies, length, pieces[-1])
        self.lengths.sum(pieces, whole)
        part = Length(sum(size for size, _ in parts))
        self.lengths.sum(known, part)
        return part

    # The sizes of nodes.

    def _of_sites(self, number: int, graph: Graph) -> dict[str, list[Sum]]:
        items: dict[str, list[Length]] = {}
        for node in graph.nodes:
            if node.operator == GETITEM and node.shape is not None:
                items.setdefault(node.inputs[0], []).extend(self.dims[number][node.name])
        found = {}
        for node in graph.nodes:
            own = sites(graph, node)
            if own:
                near = [*chain(*self._near(number, node, 1)), *items.get(node.name, ())]
                found[node.name] = [self._of_site(number, node, site, near) for site in own]
        return found

    def _of_site(self, number: int, node: Node, site: Site, near: Sequence[Length]) -> Sum:
        dims = self.dims[number].get(node.name, [])
        if site.bound:
            return None if self.valued else self._of_bound(number, site.value)
        if site.factor:
            return self._of_factor(number, node, site.value)
        if site.name == SHAPE or (
            site.count == len(dims) > site.place and dims[site.place].size == site.value
        ):
            return (dims[site.place],)
        if node.short == "aten.arange" and dims and node.args[0] == 0 and len(node.args) > 2:
            count, rest = divmod(site.value, dims[0].size)
            return None if rest else (dims[0],) * count
        if site.name in _POSITIONS and node.short in ("aten.slice", "aten.slice_scatter"):
            return self._of_position(number, node, site.value)
        if site.name == "split_sizes":
            return self._of_part(number, node, site.place)
        found = next((each for each in reversed([*near, *dims]) if each.size == site.value), None)
        return None if found is None else (found,)

    def _near(self, number: int, node: Node, back: int) -> Iterator[Sequence[Length]]:
        """The dimensions of each tensor that a node takes, and of those that these were made of."""
        for name in node.inputs:
            if back > 1:
                yield from self._near(number, self.graphs[number].by_name[name], back - 1)
            yield self.dims[number].get(name, ())

    def _of_position(self, number: int, node: Node, value: int) -> Sum:
        """The segments before a position; from a negative one, which is the same sum, the last."""
        length = self._dimension(number, node, 2 if node.short == "aten.slice_scatter" else 1)
        if length is None or value > length.size:
            return None
        if -value in node.args:
            return self.lengths.between(length, length.size - value, length.size)
        return self.lengths.between(length, 0, value)

    def _of_part(self, number: int, node: Node, place: int) -> Sum:
        """The segments of a part into which a node splits a dimension."""
        length, sizes = self._dimension(number, node, 2), node.args[1]
        if length is None or not isinstance(sizes, tuple):
            return None
        before = [each for each in sizes[: place + 1] if isinstance(each, int)]
        return self.lengths.between(length, sum(before[:-1]), sum(before)) or None

    def _dimension(self, number: int, node: Node, place: int) -> Length | None:
        """The dimension of a node's first tensor that an argument names."""
        whole = self.dims[number].get(node.inputs[0], [])
        dim = node.args[place] if len(node.args) > place else 0
        return whole[dim % len(whole)] if isinstance(dim, int) and whole else None

    def _of_bound(self, number: int, bound: int) -> Sum:
        """The bounds of a rank's part of the vocabulary are multiples of an input's dimension.

        They shrink alike, although no operator says so.
        """
        inputs = [
            each
            for node in self.graphs[number].inputs
            for each in self.dims[number].get(node.name, ())
        ]
        for factor in range(1, self.problem.mesh.size + 1):
            found = [each for each in inputs if each.size * factor == bound and each.size > 1]
            if found:
                for other in found[1:]:  # Tables of one vocabulary.
                    self.lengths.unite(found[0], other)
                return (found[0],) * factor
        return None

    def _of_factor(self, number: int, node: Node, factor: int) -> Sum:
        if factor <= _KEPT_FACTOR:
            for dims in self.dims[number].values():
                for each in dims:
                    # A dimension that views take apart keeps its length if all its factors do.
                    for atom in (each.root, *atoms(each)):
                        atom.fixed |= each.size == factor
            return None
        for near in self._near(number, node, _BACK):
            for first, last in combinations(range(len(near) + 1), 2):
                if math.prod(each.size for each in near[first:last]) == factor:
                    counted = Length(factor)
                    self.lengths.multiply(near[first:last], [counted])
                    return (counted,)
        return None
