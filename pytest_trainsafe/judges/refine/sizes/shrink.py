"""Shrinks a problem: the same graphs with small sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_trainsafe.judges.refine.errors import CannotSayError
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step
from pytest_trainsafe.judges.refine.sizes.sites import resized, sites
from pytest_trainsafe.judges.refine.sizes.solve import solve
from pytest_trainsafe.judges.refine.sizes.unknowns import StepKey, Unknowns

#: The most elements of all tensors together that are evaluated as they are; more, if none of them
#: is large: then the graphs are long, and smaller sizes would save little.
AFFORDABLE, _LONG = 1 << 21, 1 << 25
_LARGE = 1 << 14


def affordable(problem: Problem) -> bool:
    """Whether the graphs can be evaluated in the sizes that they have."""
    sizes = [
        math.prod(node.shape)
        for graph in (problem.sequential, *problem.ranks)
        for node in graph.nodes
        if node.shape is not None
    ]
    return sum(sizes) <= (_LONG if max(sizes, default=0) <= _LARGE else AFFORDABLE)


#: For each graph, and each node by name, its small sizes in the order of `sites`.
Small = Sequence[Mapping[str, Sequence[int]]]


def shrunk(problem: Problem) -> tuple[Problem, Small]:
    """The problem with small sizes, and the small sizes of each graph's nodes.

    Raises CannotSayError if no small sizes keep what must stay true.
    """
    unknowns = Unknowns(problem)
    found = solve(unknowns.lengths, [dims for own in unknowns.dims for dims in own.values()])
    if found is None:
        raise CannotSayError(
            f"the shapes of {problem.sequential.name} cannot be shrunk, and are too large to be "
            "evaluated; capture the graphs from a model with small sizes"
        )
    small = []
    for graph, sums in zip(unknowns.graphs, unknowns.sums, strict=True):
        small.append({
            name: [
                site.value if each is None else sum(found[length] for length in each)
                for site, each in zip(sites(graph, graph.by_name[name]), own, strict=True)
            ]
            for name, own in sums.items()
        })  # fmt: skip
    steps = {key: [found[each] for each in own] for key, own in unknowns.steps.items()}
    return _with_sizes(problem, small, steps), small


def _with_sizes(problem: Problem, small: Small, steps: Mapping[StepKey, Sequence[int]]) -> Problem:
    def relations(given: Mapping[str, Relation]) -> dict[str, Relation]:
        return {
            name: Relation(
                tuple(
                    _step(each, steps.get((name, relation, place), ()))
                    for place, each in enumerate(relation.steps)
                ),
                relation.names,
            )
            for name, relation in given.items()
        }

    sequential, *ranks = (
        _resized(graph, own)
        for graph, own in zip((problem.sequential, *problem.ranks), small, strict=True)
    )
    return replace(
        problem,
        sequential=sequential,
        ranks=ranks,
        inputs=relations(problem.inputs),
        outputs=relations(problem.outputs),
        # A bound is a dimension that the shapes show, or smaller than any.
        below={name: min((size, *small[0].get(name, ()))) for name, size in problem.below.items()},
    )


def _step(step: Step, small: Sequence[int]) -> Step:
    """A step of a relation with the small sizes of its parts, its blocks or its slice."""
    if not small:
        return step
    if step.parts:
        sizes = zip(small, step.parts, strict=True)
        return replace(step, parts=tuple((size, copies) for size, (_, copies) in sizes))
    if step.kind == "slice":
        *before, length = small
        return replace(step, numbers=(sum(before), sum(before) + length))
    return replace(step, by=small[0])


def _resized(graph: Graph, small: Mapping[str, Sequence[int]]) -> Graph:
    nodes = tuple(
        resized(graph, node, small[node.name]) if node.name in small else node
        for node in graph.nodes
    )
    return Graph(nodes, graph.outputs, graph.name)
