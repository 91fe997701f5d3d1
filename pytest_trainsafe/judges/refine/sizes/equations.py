"""What must stay true between the sizes of graphs when they shrink."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_trainsafe.judges.refine.evaluate.collectives import collective, group_name
from pytest_trainsafe.judges.refine.graphs.graph import GETITEM, Graph, Node, Ref, leaves
from pytest_trainsafe.judges.refine.problem import Problem
from pytest_trainsafe.judges.refine.sizes.sites import bounds_of, changed, factor_of, is_size

#: A coefficient and sizes, which are multiplied.
Term = tuple[int, tuple[int, ...]]

#: Factors of numbers up to this one keep their value; larger ones shrink with the sizes they count.
_KEPT_FACTOR = 64
#: Reshapes and their like, whose results have the elements of their first argument.
_SPLITS = ("aten.split_with_sizes", "aten.split", "aten.chunk", "aten.unbind", "aten.slice",
           "aten.unsafe_split", "aten.unsafe_split_with_sizes", "aten.slice_scatter")  # fmt: skip


@dataclass(frozen=True)
class Equation:
    """The sum of the terms on the left equals the term on the right."""

    left: tuple[Term, ...]
    right: Term

    @property
    def sizes(self) -> frozenset[int]:
        return frozenset(size for _, sizes in (*self.left, self.right) for size in sizes)


@dataclass(frozen=True)
class Sizes:
    """All sizes above one, the shapes in which they occur, and what holds between them.

    `fixed` keep their values.
    """

    values: frozenset[int]
    shapes: frozenset[tuple[int, ...]]
    equations: frozenset[Equation]
    fixed: frozenset[int]


def sizes_of(problem: Problem) -> Sizes:
    """The sizes of all graphs of a problem, with their equations."""
    graphs = list({graph.digest: graph for graph in (problem.sequential, *problem.ranks)}.values())
    values: set[int] = set()

    def note(size: int) -> int:
        values.add(size)
        return size

    for graph in graphs:
        for node in graph.nodes:
            changed(graph, node, note)
    values |= {size for each in problem.inputs.values() for step in each.steps
               for size, _ in step.parts if size > 1}  # fmt: skip
    equations = set(_of_relations(problem))
    for graph in graphs:
        for node in graph.nodes:
            equations |= set(_of_node(graph, node))
    bounds = {each for graph in graphs for node in graph.nodes for each in bounds_of(graph, node)}
    shapes = {node.shape for graph in graphs for node in graph.nodes if node.shape}
    bounds -= {size for shape in shapes for size in shape}
    equations |= set(_multiples(values, bounds, problem.mesh.size))
    factors = {factor for graph in graphs for node in graph.nodes
               if (factor := factor_of(graph, node)) is not None}  # fmt: skip
    kept = [each for each in equations if _useful(each)]
    values |= {size for each in kept for size in each.sizes}
    fixed = frozenset(each for each in factors if 1 < each <= _KEPT_FACTOR and each in values)
    return Sizes(frozenset(values), frozenset(shapes), frozenset(kept), fixed)


def _term(*sizes: int) -> Term:
    """The product of sizes; ones and zeros are coefficients."""
    return math.prod(size for size in sizes if size < 2), tuple(s for s in sizes if s > 1)


def _sum(parts: list[int], whole: int) -> Equation:
    counted = Counter(part for part in parts if part > 1)
    ones = sum(part for part in parts if part <= 1)
    left: list[Term] = [(count, (part,)) for part, count in sorted(counted.items())]
    if ones:
        left.append((ones, ()))
    return Equation(tuple(left), _term(whole))


def _ratio(small: int, factor: int, large: int) -> Equation:
    return Equation(((factor * (small if small < 2 else 1), _term(small)[1]),), _term(large))


def _useful(equation: Equation) -> bool:
    """Whether it holds for the sizes as they are, and says something."""
    total = sum(count * math.prod(sizes) for count, sizes in equation.left)
    count, sizes = equation.right
    same = equation.left == (equation.right,)
    return total == count * math.prod(sizes) and not same and bool(equation.sizes)


def _of_relations(problem: Problem) -> Iterator[Equation]:
    """The sequential size of a cut dimension is a multiple of that of a rank."""
    nodes = problem.sequential.by_name
    for name, relation in problem.inputs.items():
        shape = nodes[name].shape
        for step in relation.steps:
            if step.kind != "concat" or shape is None or step.dim >= len(shape):
                continue
            others = [graph.by_name[each].shape for graph in problem.ranks
                      for each in relation.names if each in graph.by_name]  # fmt: skip
            sizes = [other[step.dim] for other in others if other and step.dim < len(other)]
            count = problem.mesh.axes[step.axis] if step.axis else len(relation.names)
            if step.parts:
                lengths = [(size * count // copies, size, copies) for size, copies in step.parts]
                left = tuple((count // copies, (size,)) for _, size, copies in lengths)
                yield Equation(left, _term(shape[step.dim]))
                yield _sum([size for _, size, _ in lengths], sizes[0])
            elif step.axis:
                yield from (_ratio(size, shape[step.dim] // size, shape[step.dim])
                            for size in sizes if size and shape[step.dim] % size == 0)  # fmt: skip
            else:
                yield _sum(sizes[:count], shape[step.dim])


def _of_node(graph: Graph, node: Node) -> Iterator[Equation]:
    refs = [each for each in leaves((node.args, dict(node.kwargs))) if isinstance(each, Ref)]
    shapes = [shape for ref in refs if (shape := _shape(graph, ref.name)) is not None]
    if collective(node) is not None:
        yield from _of_collective(graph, node, shapes)
        return
    if node.shape is None or not shapes:
        if node.short.endswith(("split_with_sizes",)) and shapes:
            yield from _split(node, shapes[0])
        return
    source = graph.by_name[refs[0].name] if node.operator == GETITEM else node
    if source.short == "aten.cat":
        yield from _joined(node, shapes)
    elif source.short in _SPLITS:
        yield from _parted(source, node.shape, shapes[0])
    else:
        yield from _reshaped(node.shape, shapes)


def _shape(graph: Graph, name: str) -> tuple[int, ...] | None:
    """The shape of a node; of a tuple, that of the first tensor that it is made of."""
    node = graph.by_name[name]
    while node.shape is None:
        refs = node.inputs()
        if not refs:
            return None
        node = graph.by_name[refs[0]]
    return node.shape


def _of_collective(graph: Graph, node: Node, shapes: list[tuple[int, ...]]) -> Iterator[Equation]:
    _, count = group_name(graph, node)
    if node.shape and shapes and shapes[0] and count:
        small, large = sorted((shapes[0][0], node.shape[0]))
        if large == small * count:
            yield _ratio(small, count, large)


def _split(node: Node, shape: tuple[int, ...]) -> Iterator[Equation]:
    parts = node.args[1] if len(node.args) > 1 else ()
    dim = node.args[2] if len(node.args) > 2 else 0
    if isinstance(parts, tuple) and isinstance(dim, int):
        yield _sum([each for each in parts if type(each) is int], shape[dim])


def _joined(node: Node, shapes: list[tuple[int, ...]]) -> Iterator[Equation]:
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if node.shape and isinstance(dim, int):
        yield _sum([shape[dim] for shape in shapes], node.shape[dim])


def _parted(source: Node, result: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[Equation]:
    bounds = [each for each in source.args[2:4] if is_size(each)]
    for part, whole in zip(result, shape, strict=False):
        if source.short == "aten.slice" and part != whole:
            for start in [each for each in source.args[2:3] if type(each) is int and each >= 0]:
                end = min(start + part, whole)
                yield _sum([start, part], end)
                if end != whole and whole % part:
                    yield _sum([end, whole - end], whole)
        if part > 1 and whole != part and whole % part == 0 and len(bounds) < 3:
            yield _ratio(part, whole // part, whole)


def _reshaped(result: tuple[int, ...], shapes: list[tuple[int, ...]]) -> Iterator[Equation]:
    """The elements of a view stay as many, and a flattened dimension is a product."""
    first = shapes[0]
    if math.prod(first) == math.prod(result):
        if Counter(first) != Counter(result):
            yield from _factors(first, result)
        return
    known = {size for shape in shapes for size in shape}
    for size in result:
        if size < 2 or size in known:
            continue
        for shape in shapes:
            for end in range(2, len(shape) + 1):
                if math.prod(shape[:end]) == size:
                    yield Equation((_term(*shape[:end]),), _term(size))


def _factors(first: tuple[int, ...], result: tuple[int, ...]) -> Iterator[Equation]:
    """An equation for each run of dimensions that a view joins or splits."""
    i = j = 0
    while i < len(first) and j < len(result):
        left, right = [first[i]], [result[j]]
        i, j = i + 1, j + 1
        while math.prod(left) != math.prod(right):
            if math.prod(left) < math.prod(right):
                left.append(first[i])
                i += 1
            else:
                right.append(result[j])
                j += 1
        if Counter(left) != Counter(right):
            yield Equation((_term(*left),), _term(*right))


def _multiples(values: set[int], bounds: set[int], ranks: int) -> Iterator[Equation]:
    """The bounds of a rank's part of the vocabulary are multiples of its size.

    They shrink alike, although no operator says so.
    """
    for bound in bounds:
        for factor in range(2, ranks + 1):
            if bound % factor == 0 and bound // factor in values:
                yield _ratio(bound // factor, factor, bound)
                break  # The largest size that it is a multiple of.
