"""Checks a certificate against graphs, on fresh random values, without the search.

It shares with the prover how graphs are read, evaluated and combined, and nothing that finds a
relation or a size: every relation of the certificate is computed from the ranks' tensors and
compared with the sequential tensor.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.one_thread import one_thread
from pytest_trainsafe.judges.refine.certificate.content import Certificate
from pytest_trainsafe.judges.refine.errors import (
    CannotSayError,
    CertificateError,
    GraphError,
    InputRelationError,
)
from pytest_trainsafe.judges.refine.evaluate.run import Evaluated, evaluated
from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.problem.valuations import Symbols
from pytest_trainsafe.judges.refine.relations.combine import combine, same
from pytest_trainsafe.judges.refine.relations.parse import parse_relation
from pytest_trainsafe.judges.refine.relations.relation import Relation
from pytest_trainsafe.judges.refine.sizes.sites import resized

#: The largest error that a certificate may admit, and the number of seeds that are checked.
LARGEST_ERROR = 1e-9
SEEDS = 2


def check(
    certificate: Certificate, sequential: Graph, ranks: Sequence[Graph], seed: int | None = None
) -> int:
    """Checks all that a certificate says, and returns the number of relations.

    `seed` is the first seed of the random values; None draws one.
    Raises CertificateError with what does not hold.
    """
    each = _check_one(certificate, sequential, ranks, seed)
    said = (certificate.sequential, certificate.ranks, certificate.assume, certificate.rank_symbols)
    seen = [certificate.symbols]
    for other in certificate.others:
        if said != (other.sequential, other.ranks, other.assume, other.rank_symbols):
            raise CertificateError("the certificates for several sizes are of several graphs")
        if (
            other.others
            or other.symbols in seen
            or other.outputs.keys() != certificate.outputs.keys()
        ):
            raise CertificateError("the certificates for several sizes do not say the same")
        seen.append(other.symbols)
        each += _check_one(other, sequential, ranks, seed)
    return each


def _check_one(
    certificate: Certificate, sequential: Graph, ranks: Sequence[Graph], seed: int | None
) -> int:
    _check_graphs(certificate, sequential, ranks)
    sequential, ranks = _numbered(certificate, sequential, ranks)
    problem = _problem(certificate, sequential, ranks)
    relations = _relations(certificate, problem.mesh)
    fresh = secrets.randbelow(1 << 40) if seed is None else seed
    if not 0 <= certificate.error <= LARGEST_ERROR:
        raise CertificateError(f"the certificate admits an error of {certificate.error}")
    try:
        with one_thread():
            runs = evaluated(problem, fresh, range(fresh + 1, fresh + 1 + SEEDS))
            next(runs)  # The doubles, which take decisions.
            for run in runs:
                _check_complete(certificate, problem, run)
                _check_relations(certificate, relations, problem, run)
                _check_operators(certificate, run)
    except (CannotSayError, GraphError, InputRelationError) as error:
        raise CertificateError(f"the graphs cannot be evaluated: {error}") from None
    return sum(map(len, relations.values()))


def _check_graphs(certificate: Certificate, sequential: Graph, ranks: Sequence[Graph]) -> None:
    if len(ranks) != len(certificate.ranks):
        raise CertificateError(
            f"the certificate is of {len(certificate.ranks)} ranks, not of {len(ranks)}"
        )
    parts = zip((certificate.sequential, *certificate.ranks), (sequential, *ranks), strict=True)
    for part, graph in parts:
        if part.digest != graph.digest:
            raise CertificateError(
                f"{graph.name} is not the graph {shown(part.name)} that was proved"
            )


def _numbered(
    certificate: Certificate, sequential: Graph, ranks: Sequence[Graph]
) -> tuple[Graph, Sequence[Graph]]:
    """The graphs with the certificate's numbers in the place of symbolic sizes."""
    symbols = Symbols(tuple(certificate.assume), certificate.rank_symbols)
    try:
        if min(certificate.symbols.values(), default=2) < 2 or not symbols.holds(
            certificate.symbols
        ):
            raise CertificateError("the certificate's sizes are not those that it assumes")
        return symbols.numbered(certificate.symbols, sequential, ranks)
    except GraphError as error:
        raise CertificateError(f"the certificate's sizes do not fit the graphs: {error}") from None


def _problem(certificate: Certificate, sequential: Graph, ranks: Sequence[Graph]) -> Problem:
    small = _sizes(certificate, 1 + len(ranks))
    try:
        groups = {
            name: tuple(tuple(each) if isinstance(each, list) else each for each in group)
            for name, group in certificate.groups.items()
        }
        mesh = RankMesh(certificate.mesh, groups)  # type: ignore[arg-type]
        return Problem(
            _resized(sequential, small[0]),
            [_resized(graph, own) for graph, own in zip(ranks, small[1:], strict=True)],
            mesh,
            _parsed(certificate.inputs, mesh),
            _parsed(certificate.outputs, mesh),
            certificate.constants,
            {name: each.below for name, each in certificate.integers.items()},
            certificate.partial,
        )
    except (InputRelationError, GraphError) as error:
        raise CertificateError(f"the certificate does not fit the graphs: {error}") from None


def _sizes(certificate: Certificate, graphs: int) -> list[dict[str, list[int]]]:
    """The small sizes of each graph; none may be 1, which would hide what a dimension does."""
    if not certificate.sizes:
        return [{} for _ in range(graphs)]
    if len(certificate.sizes) != graphs:
        raise CertificateError(f"the certificate has sizes of {len(certificate.sizes)} graphs")
    for own in certificate.sizes:
        for name, small in own.items():
            if min(small, default=2) < 2:
                raise CertificateError(f"a size of {shown(name)} cannot become {min(small)}")
    return certificate.sizes


def _resized(graph: Graph, small: Mapping[str, Sequence[int]]) -> Graph:
    unknown = [name for name in small if name not in graph.by_name]
    if unknown:
        raise CertificateError(f"{graph.name} has no node {shown(unknown[0])}")
    nodes = []
    for node in graph.nodes:
        try:
            new = resized(graph, node, small[node.name]) if node.name in small else node
        except ValueError as error:
            raise CertificateError(f"{shown(node.name)} has {error}") from None
        nodes.append(_distinct(graph, node, new))
    return replace(graph, nodes=tuple(nodes))


def _distinct(graph: Graph, node: Node, resized: Node) -> Node:
    """The resized node; sizes that differ in one shape must still differ."""
    pairs = set(zip(node.shape or (), resized.shape or (), strict=True))
    if any(a != b and x == y for a, x in pairs for b, y in pairs):
        raise CertificateError(
            f"{graph.at(node)}: unequal dimensions of {shown(node.name)} became equal"
        )
    return resized


def _parsed(texts: Mapping[str, str], mesh: RankMesh) -> dict[str, Relation]:
    return {name: parse_relation(text, name, mesh.axes) for name, text in texts.items()}


def _relations(certificate: Certificate, mesh: RankMesh) -> dict[str, list[Relation]]:
    try:
        return {
            name: [parse_relation(text, name, mesh.axes) for text in texts]
            for name, texts in certificate.relations.items()
        }
    except InputRelationError as error:
        raise CertificateError(f"a relation cannot be read: {error}") from None


def _check_complete(certificate: Certificate, problem: Problem, run: Evaluated) -> None:
    """Every sequential tensor has a relation or is named as one without; results have one."""
    tensors = {name for name, value in run.sequential.items() if isinstance(value, torch.Tensor)}
    said = {name for name, found in certificate.relations.items() if found}
    if said & set(certificate.missing) or said | set(certificate.missing) != tensors:
        wrong = sorted((said | set(certificate.missing)) ^ tensors) or sorted(said)
        raise CertificateError(f"the certificate says nothing, or twice, of {shown(wrong[0])}")
    if not certificate.outputs:
        raise CertificateError("the certificate says nothing of the results")
    results = {name for name in problem.sequential.outputs if name is not None}
    if not results & set(certificate.outputs) and not set(certificate.outputs) <= tensors:
        raise CertificateError("the certificate's results are none of the sequential graph")


def _check_relations(
    certificate: Certificate,
    relations: Mapping[str, Sequence[Relation]],
    problem: Problem,
    run: Evaluated,
) -> None:
    for name, found in (*relations.items(), *((n, [r]) for n, r in problem.outputs.items())):
        value = run.sequential.get(name)
        if not isinstance(value, torch.Tensor):
            raise CertificateError(f"{shown(name)} is no tensor of the sequential graph")
        for relation in found:
            try:
                made = combine(relation, run.ranks, problem.mesh, run.numbers)
            except InputRelationError as error:
                raise CertificateError(f"{shown(name)} is no {relation}: {error}") from None
            if made.numel() != value.numel() or not same(made.reshape(value.shape), value):
                raise CertificateError(f"{shown(name)} is not the {relation}")


def _check_operators(certificate: Certificate, run: Evaluated) -> None:
    unsaid = sorted(set(run.met) - set(certificate.operators))
    if unsaid:
        raise CertificateError(f"the certificate does not say that it rests on {unsaid[0]}")
