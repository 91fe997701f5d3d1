"""What must stay true between the sizes of graphs when they shrink."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judges.refine.evaluate.collectives import collective, group_name, peer
from pytest_trainsafe.judges.refine.graphs.graph import GETITEM, Graph, Node, Ref, leaves
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step
from pytest_trainsafe.judges.refine.sizes.closure import Equation, Term, closed
from pytest_trainsafe.judges.refine.sizes.sites import PARTING, bounds_of, factor_of
from pytest_trainsafe.judges.refine.sizes.variables import Key, Variables

#: The key of a size in the node at hand.
At = Callable[[int], Key]

#: Factors of numbers up to this one keep their value; larger ones shrink with the sizes they count.
_KEPT_FACTOR = 64


@dataclass(frozen=True)
class Sizes:
    """All sizes as variables, the shapes in which they occur, and what holds between them.

    A dimension of 1 is None in a shape.  `fixed` keep their values, and `even` stay even.
    """

    variables: Variables
    keys: frozenset[Key]
    shapes: frozenset[tuple[Key | None, ...]]
    equations: frozenset[Equation]
    fixed: frozenset[Key]
    even: frozenset[Key]


def sizes_of(problem: Problem) -> Sizes:
    """The sizes of all graphs of a problem, with their equations."""
    variables = Variables(problem)
    equations = list(_of_relations(problem, variables))
    fixed: set[Key] = set()
    for number, graph in enumerate(variables.graphs):
        for node in graph.nodes:
            at = _at(number, node.name)
            equations += _of_node(graph, node, at, variables.positions(number, node.name))
            equations += _of_kernel(graph, node, at, variables.local(number, node.name))
            equations += _of_bounds(graph, node, at, number, problem.mesh.size)
            factor = factor_of(graph, node)
            if factor is not None and 1 < factor <= _KEPT_FACTOR:
                fixed |= {
                    (number, each.name, factor)
                    for each in graph.nodes
                    if factor in variables.local(number, each.name)
                }
    kept = closed(equations, variables)
    shapes = {
        tuple(variables.find((number, node.name, size)) if size > 1 else None for size in shape)
        for number, graph in enumerate(variables.graphs)
        for node in graph.nodes
        if (shape := node.shape)
    }
    return Sizes(
        variables,
        frozenset(variables.all()),
        frozenset(shapes),
        kept,
        frozenset(map(variables.find, fixed)),
        frozenset(map(variables.find, _halved(variables))),
    )


def _halved(variables: Variables) -> Iterator[Key]:
    """Even sizes of kernels outside of torch, which may halve them, as rotary embeddings do."""
    for number, graph in enumerate(variables.graphs):
        for node in filter(_is_kernel, graph.nodes):
            for size in variables.local(number, node.name):
                if size % 2 == 0:
                    yield number, node.name, size


def _is_kernel(node: Node) -> bool:
    """Whether a node calls a kernel outside of torch, whose schema is not known."""
    computes = bool(node.inputs) and node.operator != GETITEM
    talks = "c10d" in node.operator or peer(node) is not None
    return computes and not node.operator.startswith("aten.") and not talks


def _of_kernel(graph: Graph, node: Node, at: At, sizes: Collection[int]) -> Iterator[Equation]:
    """A kernel may halve a last dimension, as silu_and_mul does, or take a flattened one.

    So the statistics of a layer norm have as many elements as there are rows.
    """
    if not _is_kernel(node) or collective(node) is not None:
        return
    shapes = [graph.by_name[name].shape or () for name in node.inputs]
    last = {shape[-1] for shape in (*shapes, node.shape or ()) if shape}
    for size in last:
        if size > 1 and 2 * size in last:
            yield _ratio(_term(at, size), 2, _term(at, 2 * size))
    for shape in shapes:
        for end in range(2, len(shape) + 1):
            if math.prod(shape[:end]) in sizes:
                yield Equation((_term(at, *shape[:end]),), _term(at, math.prod(shape[:end])))


def _at(number: int, name: str) -> At:
    return lambda size: (number, name, size)


def _term(at: At, *sizes: int) -> Term:
    """The product of sizes; ones and zeros are coefficients."""
    return math.prod(size for size in sizes if size < 2), tuple(at(s) for s in sizes if s > 1)


def _sum(at: At, parts: Sequence[int], whole: int) -> Equation:
    return Equation(tuple(_term(at, part) for part in parts), _term(at, whole))


def _ratio(small: Term, factor: int, large: Term) -> Equation:
    return Equation(((factor * small[0], small[1]),), large)


def _of_relations(problem: Problem, variables: Variables) -> Iterator[Equation]:
    """Dimensions of inputs that are not cut are the same on both sides; of others, the ratio."""
    for name, relation in problem.inputs.items():
        shape = problem.sequential.by_name[name].shape
        cuts = {step.dim: step for step in relation.steps if step.kind == "concat"}
        for number, graph in enumerate(problem.ranks, 1):
            for each in relation.names:
                other = graph.by_name[each].shape if each in graph.by_name else None
                if shape is None or other is None or len(other) != len(shape):
                    continue
                for dim, (whole, part) in enumerate(zip(shape, other, strict=True)):
                    if dim not in cuts and whole == part > 1:
                        variables.unite((0, name, whole), (number, each, part))
        for dim, step in cuts.items():
            if shape is not None and dim < len(shape):
                yield from _of_cut(problem, variables, name, relation, step, shape[dim])


def _of_cut(
    problem: Problem,
    variables: Variables,
    name: str,
    relation: Relation,
    step: Step,
    whole: int,
) -> Iterator[Equation]:
    right = _term(_at(0, name), whole)
    count = problem.mesh.axes[step.axis] if step.axis else len(relation.names)
    for number, graph in enumerate(problem.ranks, 1):
        held = [(each, shape) for each in relation.names if each in graph.by_name
                if (shape := graph.by_name[each].shape) and step.dim < len(shape)]  # fmt: skip
        if not step.axis:
            left = tuple(_term(_at(number, each), shape[step.dim]) for each, shape in held)
            yield Equation(left, right)
            continue
        for each, shape in held:
            at, part = _at(number, each), shape[step.dim]
            if step.parts:
                sizes = [size for size, _ in step.parts]
                variables.note(number, each, sizes)
                variables.note(0, name, sizes)
                for size in sizes:
                    variables.unite((number, each, size), (0, name, size))
                yield _sum(at, sizes, part)
                yield from _of_fused(problem, variables, step, at, number)
                terms = ((count // copies, _term(at, size)) for size, copies in step.parts)
                yield Equation(tuple((n * term[0], term[1]) for n, term in terms), right)
            elif part and whole % part == 0:
                yield _ratio(_term(at, part), whole // part, right)


def _of_fused(
    problem: Problem, variables: Variables, step: Step, at: At, number: int
) -> Iterator[Equation]:
    """Operators that take a fused tensor apart take the parts that its relation says."""
    count = problem.mesh.axes[step.axis]
    for size, copies in step.parts:
        for name in variables.parting(number, size):
            variables.unite(at(size), (number, name, size))
        whole = size * count // copies
        for name in variables.parting(0, whole):
            yield _ratio(_term(at, size), count // copies, _term(_at(0, name), whole))


def _of_node(graph: Graph, node: Node, at: At, positions: Mapping[int, Key]) -> Iterator[Equation]:
    refs = [each for each in leaves((node.args, dict(node.kwargs))) if isinstance(each, Ref)]
    shapes = [shape for ref in refs if (shape := _shape(graph, ref.name)) is not None]
    if not shapes:
        return
    if collective(node) is not None:
        yield from _of_collective(graph, node, shapes, at)
    elif node.short.endswith("split_with_sizes"):
        yield from _split(node, shapes[0], at)
    elif node.shape is not None:
        source = graph.by_name[refs[0].name] if node.operator == GETITEM else node
        if source.short == "aten.slice_scatter" and len(shapes) > 1:
            yield from _written(source, shapes[1], at, positions)
        elif source.short == "aten.cat":
            yield from _joined(node, shapes, at)
        elif source.short in PARTING:
            yield from _parted(source, node.shape, shapes[0], at, positions)
        else:
            yield from _reshaped(node.shape, shapes, at)


def _of_bounds(graph: Graph, node: Node, at: At, number: int, ranks: int) -> Iterator[Equation]:
    """The bounds of a rank's part of the vocabulary are multiples of an input's dimension.

    They shrink alike, although no operator says so.
    """
    for bound in bounds_of(graph, node):
        for factor in range(1, ranks + 1):
            found = [
                _ratio(_term(_at(number, each.name), bound // factor), factor, _term(at, bound))
                for each in graph.inputs
                if bound % factor == 0 and bound // factor in (each.shape or ())
            ]
            yield from found
            if found:
                break


def _shape(graph: Graph, name: str) -> tuple[int, ...] | None:
    """The shape of a node; of a tuple, that of the first tensor that it is made of."""
    node = graph.by_name[name]
    while node.shape is None:
        refs = node.inputs
        if not refs:
            return None
        node = graph.by_name[refs[0]]
    return node.shape


def _of_collective(
    graph: Graph, node: Node, shapes: list[tuple[int, ...]], at: At
) -> Iterator[Equation]:
    _, count = group_name(graph, node)
    if node.shape and shapes and shapes[0] and count:
        small, large = sorted((shapes[0][0], node.shape[0]))
        if large == small * count:
            yield _ratio(_term(at, small), count, _term(at, large))


def _split(node: Node, shape: tuple[int, ...], at: At) -> Iterator[Equation]:
    parts = node.args[1] if len(node.args) > 1 else ()
    dim = node.args[2] if len(node.args) > 2 else 0
    if isinstance(parts, tuple) and isinstance(dim, int):
        yield _sum(at, [each for each in parts if type(each) is int], shape[dim])


def _joined(node: Node, shapes: list[tuple[int, ...]], at: At) -> Iterator[Equation]:
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if node.shape and isinstance(dim, int):
        yield _sum(at, [shape[dim] for shape in shapes], node.shape[dim])


def _written(
    source: Node, part: tuple[int, ...], at: At, positions: Mapping[int, Key]
) -> Iterator[Equation]:
    """A part that is written ends where it starts plus its length."""
    dim, start, end = (*source.args[2:5], 0, 0, 0)[:3]
    if type(dim) is int and type(start) is int and type(end) is int and start + part[dim] == end:
        yield from _placed(start, part[dim], end, at, positions)


def _parted(
    source: Node,
    result: tuple[int, ...],
    shape: tuple[int, ...],
    at: At,
    positions: Mapping[int, Key],
) -> Iterator[Equation]:
    """A part ends where it starts plus its length; equal parts divide the whole."""
    start, end = (*source.args[2:4], None, None)[:2]
    for part, whole in zip(result, shape, strict=False):
        if part == whole:
            continue
        if source.short == "aten.slice" and type(start) is int and start >= 0:
            last = min(start + part, whole)
            yield from _placed(start, part, last, at, positions)
            if end != whole and last == whole:
                continue
            if start and start % part == 0 and whole % part == 0 and start in positions:
                yield _ratio(_term(at, part), start // part, (1, (positions[start],)))
        if whole % part == 0 and not source.short.endswith("with_sizes"):
            yield _ratio(_term(at, part), whole // part, _term(at, whole))


def _placed(
    start: int, part: int, end: int, at: At, positions: Mapping[int, Key]
) -> Iterator[Equation]:
    def term(place: int) -> Term:
        return (1, (positions[place],)) if place in positions else _term(at, place)

    yield Equation((term(start), _term(at, part)), term(end))


def _reshaped(result: tuple[int, ...], shapes: list[tuple[int, ...]], at: At) -> Iterator[Equation]:
    """The elements of a view stay as many, and a flattened dimension is a product."""
    first = shapes[0]
    if math.prod(first) == math.prod(result):
        if Counter(first) != Counter(result):
            yield from _factors(first, result, at)
        return
    known = {size for shape in shapes for size in shape}
    for size in result:
        if size < 2 or size in known:
            continue
        for shape in shapes:
            for end in range(2, len(shape) + 1):
                if math.prod(shape[:end]) == size:
                    yield Equation((_term(at, *shape[:end]),), _term(at, size))


def _factors(first: tuple[int, ...], result: tuple[int, ...], at: At) -> Iterator[Equation]:
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
            yield Equation((_term(at, *left),), _term(at, *right))
