"""Proves or refutes that the ranks' graphs refine the sequential one.

Called by the judge's front ends.  The result is a Proof, which becomes a certificate, or a
Refutation, which becomes a Finding; CannotSayError is raised if neither can be said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pytest_trainsafe.arithmetic import Numbers
from pytest_trainsafe.judges.one_thread import one_thread
from pytest_trainsafe.judges.refine.errors import CannotSayError, InputRelationError
from pytest_trainsafe.judges.refine.evaluate.lockstep import Tensors
from pytest_trainsafe.judges.refine.evaluate.memory import reads
from pytest_trainsafe.judges.refine.evaluate.run import Evaluated, evaluated
from pytest_trainsafe.judges.refine.graphs.graph import GETITEM, Graph, Node
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.problem.expected import Expected, expectations
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.combine import combine
from pytest_trainsafe.judges.refine.relations.relation import Relation
from pytest_trainsafe.judges.refine.search.content import content
from pytest_trainsafe.judges.refine.search.find import Finder
from pytest_trainsafe.judges.refine.search.frontier import frontier, tensors_of
from pytest_trainsafe.judges.refine.search.index import Index
from pytest_trainsafe.judges.refine.search.nearest import Nearest, makers, nearest
from pytest_trainsafe.judges.refine.search.rescaled import rescaled
from pytest_trainsafe.judges.refine.sizes.shrink import Small, affordable, shrunk

#: The largest probability that any relation of a certificate is false.
ERROR = 1e-9
#: Multiplications in a row that one operator's semantics add to a number's degree, at most.
_DEGREE = 16
#: How far numbers may be apart that are equal but for rounding: of their own size, and of the size
#: of the largest one beside them.
_CLOSE, _BESIDE = 1e-9, 1e-11
#: The bits that numbers keep where replicas must be equal but for rounding.
_KEPT_BITS = 36
_MOST_SEEDS = 7

Relations = Mapping[str, tuple[Relation, ...]]


@dataclass(frozen=True)
class Proof:
    """Every result has the relation that it must have, except with the probability `error`.

    `relations` has all relations that were found, of all sequential tensors, preferred ones first.
    `missing` are intermediate tensors without one.  `met` counts the operators by name.
    `problem` has small sizes if `small` is not empty, which has the small sizes of
    each graph's nodes.
    """

    problem: Problem
    relations: Relations
    outputs: Mapping[str, Relation]
    missing: tuple[str, ...]
    seeds: tuple[int, ...]
    error: float
    met: Mapping[str, int]
    small: Small = ()


@dataclass(frozen=True)
class Refutation:
    """The operator at which the graphs part.

    `inputs` has the preferred relation of each of its tensor inputs.  `relation` is the relation
    of its own result, if it has one that is not `expected`, and `nearest` what it resembles.
    `unreduced` is an input, and the sum that it is, of which the ranks take a term in its place.
    """

    problem: Problem
    node: Node
    inputs: Mapping[str, Relation]
    wrong: tuple[str, ...]
    expected: Expected | None = None
    relation: Relation | None = None
    nearest: Nearest | None = None
    unreduced: tuple[str, Relation] | None = None
    small: Small = ()

    @property
    def operator(self) -> Node:
        """The operator that makes the tensor: that of the tuple, for an item of one."""
        return _maker(self.problem.sequential, self.node)


def _maker(graph: Graph, node: Node) -> Node:
    while node.operator == GETITEM:
        node = graph.by_name[node.inputs[0]]
    return node


def error_bound(relations: int, operators: int, elements: int, seeds: int) -> float:
    """The probability that one of the relations is false.

    A search compares values of all elements, so each pair of them may agree by chance.
    """
    one = ((_DEGREE * operators) ** 2 + elements**2 / 2) / 2**61
    return relations * min(one, 1.0) ** seeds


def seeds_for(relations: int, operators: int, elements: int) -> int:
    """How many seeds make the bound small enough; at least two."""
    for count in range(2, _MOST_SEEDS + 1):
        if error_bound(relations, operators, elements, count) <= ERROR:
            return count
    raise CannotSayError("the graphs are too large for a useful bound; shrink their shapes")


def prove(problem: Problem, data_seed: int = 0, first_seed: int = 1) -> Proof | Refutation:
    """Finds relations of all sequential tensors, and judges those of the results.

    Graphs that are too large to be evaluated are shrunk first.
    Raises CannotSayError, GraphError or InputRelationError if nothing can be said.
    """
    small: Small = ()
    if not affordable(problem):
        problem, small = shrunk(problem)
    with one_thread():
        found = _found(problem, data_seed, first_seed)
    return replace(found, small=small)


def _found(problem: Problem, data_seed: int, first_seed: int) -> Proof | Refutation:
    doubles, first = evaluated(problem, data_seed, [first_seed])
    index = Index(first.ranks, problem.mesh, first.numbers)
    fused = {step.parts for each in problem.inputs.values() for step in each.steps if step.parts}
    finder = Finder(index, fused)
    found = {
        node.name: finder.relations(node.name, value)
        for node in problem.sequential.nodes
        if isinstance(value := first.sequential.get(node.name), torch.Tensor)
    }
    # Integers of inputs may be drawn from two numbers, and be equal to those of others by chance.
    found |= {
        name: [relation]
        for name, relation in problem.inputs.items()
        if name in found and not first.sequential[name].is_floating_point()
    }
    operators = len(problem.sequential.nodes) + max(len(each.nodes) for each in problem.ranks)
    count = sum(map(len, found.values())) + len(problem.outputs)
    size = (count, operators, first.elements)
    seeds = tuple(range(first_seed, first_seed + seeds_for(*size)))
    # Each seed has inputs of its own: what holds only for the decisions of one is no relation.
    others = [
        run
        for number, seed in enumerate(seeds[1:], 1)
        for run in list(evaluated(problem, data_seed + number, [seed]))[1:]
    ]
    relations = {
        name: tuple(
            each
            for each in candidates
            if all(holds(each, run.sequential[name], run.ranks, problem.mesh, run.numbers)
                   for run in (first, *others))
        )
        for name, candidates in found.items()
    }  # fmt: skip
    return _judged(problem, relations, doubles, [first, *others], finder, seeds, size)


def holds(
    relation: Relation, x: object, ranks: Sequence[Tensors], mesh: RankMesh, numbers: Numbers
) -> bool:
    """Whether a relation makes exactly a sequential tensor's numbers of the ranks' tensors."""
    if not isinstance(x, torch.Tensor):
        return False
    try:
        made = combine(relation, ranks, mesh, numbers)
    except InputRelationError:
        return False
    return content(made) == content(x)


def _judged(
    problem: Problem,
    relations: Relations,
    doubles: Evaluated,
    runs: Sequence[Evaluated],
    finder: Finder,
    seeds: tuple[int, ...],
    size: tuple[int, int, int],
) -> Proof | Refutation:
    outputs: dict[str, Relation] = {}
    wrong: list[Expected] = []
    for expected in _known(problem, runs[0]):
        met = _met(expected, problem, relations, runs)
        if met is None:
            wrong.append(expected)
        else:
            outputs[expected.output] = met
    if wrong:
        _require_difference(wrong, problem, doubles)
        return _refutation(problem, relations, runs[0], wrong, finder)
    missing = tuple(
        name
        for name, found in relations.items()
        if not found and problem.sequential.by_name[name].inputs
    )
    return Proof(
        problem,
        relations,
        outputs,
        missing,
        seeds,
        error_bound(*size, len(seeds)),
        dict(runs[0].met),
    )


def _known(problem: Problem, run: Evaluated) -> list[Expected]:
    """The expectations of all results that are known."""
    found = expectations(problem)
    known = [each for each in found if each.output in run.sequential]
    if not known or (problem.outputs and len(known) < len(found)):
        missing = next((each.output for each in found if each not in known), "every result")
        raise CannotSayError(f"{missing} depends on inputs without a relation")
    return known


def _met(
    expected: Expected, problem: Problem, relations: Relations, runs: Sequence[Evaluated]
) -> Relation | None:
    if expected.relation is None:
        return expected.met_by(relations.get(expected.output, ()))
    right = all(
        holds(expected.relation, run.sequential[expected.output], run.ranks, problem.mesh,
              run.numbers)
        for run in runs
    )  # fmt: skip
    return expected.relation if right else None


def _require_difference(wrong: Sequence[Expected], problem: Problem, doubles: Evaluated) -> None:
    """Raises CannotSayError if all wrong results are right in float64.

    Then the graphs differ by an identity that exact numbers do not know, and that is no bug.
    """
    for expected in wrong:
        relation = expected.relation
        if relation is None:
            if not expected.name:
                return
            relation = Relation((), (expected.name,))
        x = doubles.sequential[expected.output]
        try:
            made = combine(relation, _rounded(doubles.ranks), problem.mesh, doubles.numbers)
        except InputRelationError:
            return
        if made.shape != x.shape or not _close(made.double(), x.double()):
            return
    names = ", ".join(each.output for each in wrong)
    raise CannotSayError(
        f"{names} of the ranks equals that of {problem.sequential.name} in float64, but not by "
        "the identities that exact numbers know; nothing can be said"
    )


def _close(x: torch.Tensor, y: torch.Tensor) -> bool:
    size = float(y.abs().nan_to_num(posinf=0).max()) if y.numel() else 0.0
    return torch.allclose(x, y, rtol=_CLOSE, atol=_BESIDE * size, equal_nan=True)


def _rounded(ranks: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
    """Doubles without their last bits, so that replicas that differ by rounding are equal."""
    return [
        {
            name: (_shortened(value) if value.is_floating_point() else value)
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
        }
        for values in ranks
    ]


def _shortened(x: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp((mantissa * 2.0**_KEPT_BITS).round() / 2.0**_KEPT_BITS, exponent)


def _refutation(
    problem: Problem,
    relations: Relations,
    run: Evaluated,
    wrong: Sequence[Expected],
    finder: Finder,
) -> Refutation:
    graph, values = problem.sequential, run.sequential
    related = {name for name, found in relations.items() if found}

    def opposite(x: torch.Tensor) -> bool:
        return bool(finder.relations("", run.numbers.negate(x)))

    read = reads(graph, run.places)
    node = frontier(graph, values, related, [each.output for each in wrong], opposite, read)
    own = relations.get(node.name, ())
    near = [] if own else _near(problem, node, run, finder)
    later = rescaled(graph, values, related, node) if near else node
    last = [] if later is node else _near(problem, later, run, finder)
    # The ranks that scale by the same constants keep the factor that is wrong at the first.
    if last and last[0].factor not in {each.factor for each in near}:
        node, near = later, last
    inputs = {
        name: relations[name][0]
        for name in tensors_of(graph, values, node.name, read)
        if relations.get(name)
    }
    return Refutation(
        problem,
        node,
        inputs,
        tuple(each.output for each in wrong),
        next((each for each in wrong if each.output == node.name), None),
        own[0] if own else None,
        near[0] if near else None,
        _unreduced(problem, _maker(graph, node), relations, list(inputs)),
    )


def _near(problem: Problem, node: Node, run: Evaluated, finder: Finder) -> list[Nearest]:
    """The multiples that a tensor is; first those that the ranks make by the same operator."""
    x = run.sequential[node.name]
    found = nearest(x, finder.index, run.numbers) if isinstance(x, torch.Tensor) else []
    return sorted(found, key=lambda each: node.short not in makers(each, problem.ranks))


def _unreduced(
    problem: Problem, node: Node, relations: Relations, inputs: Sequence[str]
) -> tuple[str, Relation] | None:
    """An input that is a sum of terms, if an operator of a rank like `node` takes a term of it."""
    taken = {
        name
        for graph in problem.ranks
        for each in graph.nodes
        if each.short == node.short
        for name in each.inputs
    }
    for name in inputs:
        for relation in relations[name]:
            if relation.summed and set(relation.names) <= taken:
                return name, relation
    return None
