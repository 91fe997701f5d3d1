"""Writes the certificate of a proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pytest_trainsafe.judges.refine.certificate.content import (
    FORMAT,
    Certificate,
    GraphPart,
    Integers,
)
from pytest_trainsafe.judges.refine.evaluate.constants import unstated
from pytest_trainsafe.judges.refine.evaluate.draw import bounds
from pytest_trainsafe.judges.refine.evaluate.kernels import ASSUMED, semantics
from pytest_trainsafe.judges.refine.graphs.graph import CONDITION, Graph
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.problem.valuations import Symbols
from pytest_trainsafe.judges.refine.prove import Proof

#: What every proof assumes.
ALWAYS = (
    "numbers are real: rounding, overflow and casts between floats of 16 bits or more change none",
    "the proof is for these shapes, and for inputs that decide comparisons alike",
    "functions such as erf, sin and cos are known by nothing but their name",
)


_NOT_ASKED: Mapping[str, str] = {}


def certificate_of(
    proof: Proof,
    given: Problem,
    data_seed: int,
    symbolic: tuple[Graph, Sequence[Graph]] | None = None,
    engines: Mapping[str, str] = _NOT_ASKED,
) -> Certificate:
    """The certificate of a proof of the problem `given`, whose graphs may have been shrunk.

    If sizes of the user's graphs are symbolic, those graphs are `symbolic`, and `given` has numbers
    in the place of the symbols.  `engines` is what a second engine says of each tensor.
    """
    sequential, ranks = symbolic or (given.sequential, given.ranks)
    problem = proof.problem
    below = {**bounds(problem.sequential), **problem.below}
    table = semantics()
    modules = {
        name: getattr(table[name].rule, "__module__", "torch") if name in table else "torch"
        for name in sorted(proof.met)
    }
    return Certificate(
        format=FORMAT,
        sequential=_part(sequential),
        ranks=tuple(map(_part, ranks)),
        mesh=dict(problem.mesh.axes),
        groups={
            name: [list(each) if isinstance(each, tuple) else each for each in group]
            for name, group in problem.mesh.groups.items()
        },
        sizes=[{name: list(own) for name, own in each.items()} for each in proof.small],
        inputs={name: str(each) for name, each in problem.inputs.items()},
        constants=dict(problem.constants),
        integers={name: Integers(bound, data_seed) for name, bound in below.items()},
        outputs={name: str(each) for name, each in proof.outputs.items()},
        relations={
            name: [str(each) for each in found] for name, found in proof.relations.items() if found
        },
        engines=dict(engines),
        missing=[name for name, found in proof.relations.items() if not found],
        partial=problem.partial,
        seeds=list(proof.seeds),
        operators=modules,
        assumed=list(_assumed(proof)),
        error=proof.error,
    ).whole()


def joined(
    certificates: Sequence[Certificate], symbols: Symbols, read: Sequence[str]
) -> Certificate:
    """One certificate of graphs whose sizes are symbolic, from one for each of their values.

    `read` are the sizes that the graphs read from tensors.
    """
    assumed = [f"{name}, which is read from a tensor, is what the graph states" for name in read]
    first, *others = (
        msgspec.structs.replace(
            each,
            symbols=dict(values),
            assume=list(symbols.assume),
            rank_symbols=dict(symbols.ranks),
            assumed=[*each.assumed, *assumed],
        ).whole()
        for each, values in zip(certificates, symbols.values, strict=True)
    )
    return msgspec.structs.replace(first, others=others).whole()


def _part(graph: Graph) -> GraphPart:
    return GraphPart(graph.name, graph.digest)


def _assumed(proof: Proof) -> Iterable[str]:
    problem = proof.problem
    yield from ALWAYS
    yield from sorted({ASSUMED[name] for name in proof.met if name in ASSUMED})
    for graph in dict.fromkeys((problem.sequential.name, *(each.name for each in problem.ranks))):
        names = {
            name
            for each in (problem.sequential, *problem.ranks)
            if each.name == graph
            for name in unstated(each, {*problem.constants, *problem.inputs})
        }
        if names:
            yield f"{', '.join(sorted(names))} of {graph}, which the text does not hold, are 0"
        asked = {
            node.inputs[0]
            for each in (problem.sequential, *problem.ranks)
            if each.name == graph
            for node in each.nodes
            if node.operator == CONDITION
        }
        if asked:
            yield f"the conditions {', '.join(sorted(asked))} of {graph} are as they were captured"
    if problem.partial:
        yield "nothing is said of what depends on inputs without a relation"
    for name in problem.given:
        yield f"{name} of the sequential graph, and what it is made of, are taken as given"
