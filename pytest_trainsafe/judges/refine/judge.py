"""Judges whether graphs refine a sequential one: a certificate, or a Judgement with a Finding.

Called by `assert_refines` and by the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trainsafe.core.finding import CallSubject, Finding, Pattern, Verdict
from pytest_trainsafe.core.usage import shown as described
from pytest_trainsafe.errors import ArgumentTypeError
from pytest_trainsafe.judges.refine.certificate.content import Certificate
from pytest_trainsafe.judges.refine.certificate.write import certificate_of, joined
from pytest_trainsafe.judges.refine.errors import CannotSayError
from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node
from pytest_trainsafe.judges.refine.graphs.load import graph_of
from pytest_trainsafe.judges.refine.graphs.symbols import read_from_tensors
from pytest_trainsafe.judges.refine.layouts import layouts
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.problem.declared import (
    Declaration,
    read_declaration,
    stated_problem,
)
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.problem.valuations import Symbols, symbols
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove
from pytest_trainsafe.judges.refine.relations.relation import Relation
from pytest_trainsafe.judges.refine.search.nearest import Nearest
from pytest_trainsafe.judges.refine.solver.workers import Limits, said

JUDGE = "refine"
#: The checks of this judge, and what each means.
CHECKS = {
    "refine:relation": "an operator of the sequential graph has no clean relation to the ranks",
    "refine:semantics": "an operator, a size or a group is not known, so nothing can be said",
}


_NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class RefinementJudgement:
    """The judgement of graphs; `certificate` is that of a proof, None if there is none."""

    findings: Sequence[Finding]
    certificate: Certificate | None = None
    judge: str = JUDGE
    not_compared: Sequence[str] = ()
    panels: str = "pytest_trainsafe.judges.refine.panels"
    text: str = "pytest_trainsafe.judges.refine.text"

    @property
    def verdict(self) -> Verdict:
        return self.findings[0].verdict if self.findings else "pass"


def judge(
    sequential: Any,
    distributed: Sequence[Any],
    relation: Declaration | Path | str | None = None,
    outputs: Mapping[str, str] | None = None,
    data_seed: int = 0,
    second: Limits | bool = False,
) -> RefinementJudgement:
    """The judgement of graphs, which may be files, texts or graph modules.

    `second` are the limits of the second engine, if it is asked about a proof; True for the usual.

    Raises GraphError or InputRelationError for graphs or relations that cannot be used, and
    ArgumentError unless `distributed` is a list.
    """
    if isinstance(distributed, str) or not isinstance(distributed, Sequence):
        raise ArgumentTypeError(
            f"assert_refines was given {described(distributed)} after the sequential graph; pass "
            "the list of the ranks' graphs, in the order of ranks"
        )
    limits = Limits() if second is True else second or None
    declared = read_declaration(relation) if isinstance(relation, Path | str) else relation
    if outputs is not None:
        declared = {**(declared or {"propose": True}), "outputs": outputs}
    first = graph_of(sequential, "sequential")
    ranks = [graph_of(each, f"rank {number}") for number, each in enumerate(distributed)]
    try:
        found = symbols(declared or {}, first, ranks)
    except CannotSayError as error:
        return RefinementJudgement([_doubt(error)])
    if not found.values:
        return judged(stated_problem(first, ranks, declared), data_seed, second=limits)
    return _with_symbols(found, first, ranks, declared, data_seed, limits)


def _with_symbols(
    found: Symbols,
    sequential: Graph,
    ranks: Sequence[Graph],
    declared: Declaration | None,
    data_seed: int,
    second: Limits | None,
) -> RefinementJudgement:
    """The judgement of graphs with symbolic sizes: of the first values for which it is no proof."""
    certificates = []
    for values in found.values:
        numbered, others = found.numbered(values, sequential, ranks)
        problem = stated_problem(numbered, others, declared)
        judgement = judged(problem, data_seed, (sequential, ranks), values, second)
        if judgement.certificate is None:
            return judgement
        certificates.append(judgement.certificate)
    read = dict.fromkeys(
        name for graph in (sequential, *ranks) for name in read_from_tensors(graph)
    )
    return RefinementJudgement([], joined(certificates, found, list(read)))


def judged(
    problem: Problem,
    data_seed: int = 0,
    symbolic: tuple[Graph, Sequence[Graph]] | None = None,
    sizes: Mapping[str, int] = _NO_SIZES,
    second: Limits | None = None,
) -> RefinementJudgement:
    """The judgement of a problem; `sizes` are the numbers in the place of symbolic sizes.

    `second` are the limits of the second engine, if it is asked about a proof.
    """
    try:
        found = prove(problem, data_seed)
        engines = said(found, second) if second and isinstance(found, Proof) else {}
    except CannotSayError as error:
        return RefinementJudgement([_doubt(error)])
    if isinstance(found, Proof):
        return RefinementJudgement([], certificate_of(found, problem, data_seed, symbolic, engines))
    return RefinementJudgement([_finding(found, problem.sequential, sizes)])


def _doubt(error: CannotSayError) -> Finding:
    subject = CallSubject(error.operator) if error.operator else None
    return Finding(
        verdict="inconclusive",
        judge=JUDGE,
        check="refine:semantics",
        message=str(error),
        subject=subject,
    )


def _finding(found: Refutation, graph: Graph, sizes: Mapping[str, int]) -> Finding:
    node = found.operator
    place = node.source or f"{graph.name}:{node.line}"
    return Finding(
        verdict="fail",
        judge=JUDGE,
        check="refine:relation",
        message=_message(found),
        subject=CallSubject(node.short, place),
        evidence=(
            ("tensor", found.node.name),
            *((f"input {name}", str(each)) for name, each in found.inputs.items()),
            ("wrong results", ", ".join(found.wrong)),
            *_warning(found.problem),
            *(
                [("sizes", ", ".join(f"{name}={size}" for name, size in sizes.items()))]
                * bool(sizes)
            ),
        ),
        order=graph.nodes.index(graph.by_name[node.name]),
        pattern=_pattern(found),
        module_class=node.module,
        source=node.source,
    )


def _warning(problem: Problem) -> list[tuple[str, str]]:
    """The first thing that looks wrong in the layouts of the ranks' tensors; it decides nothing."""
    for each in layouts(problem):
        for name, text in each.warnings[:1]:
            return [("layouts", f"{problem.ranks[0].by_name[name]} {text}")]
    return []


def _message(found: Refutation) -> str:
    name = found.node.name
    if found.relation is not None:
        wanted = f", not {found.expected}" if found.expected is not None else ""
        return f"{name} is {found.relation}{wanted}"
    return f"{name} has no clean relation to tensors of the ranks"


def _pattern(found: Refutation) -> Pattern | None:
    """How the wrong value follows from the right one, in the terms of the compare judge."""
    unreduced = found.unreduced
    if unreduced is None and found.relation is not None and found.relation.summed:
        unreduced = found.node.name, found.relation
    if unreduced is not None:
        name, relation = unreduced
        axis = next(step.axis for step in relation.steps if step.kind == "sum")
        over = axis or "the micro-batches"
        cause = f"an all-reduce over {over} is missing"
        short = f"partial sums over {over}, all-reduce missing"
        if (later := _reduced_later(found.problem.ranks, relation)) is not None:
            at = f" at {later.source}" if later.source else ""
            cause = (
                f"each rank holds a term over {over}, and {later.short}{at} adds the terms up, but "
                "they are scaled before it: what is wrong lies between the two"
            )
            short = f"a term over {over} is scaled before {later.short}"
        elif (early := _before_reduction(found, relation)) is not None:
            at = f" at {early.source}" if early.source else ""
            cause = (
                f"each rank applies {early.short} to its own term{at}, before the all-reduce over "
                f"{over}: what it adds there is added by every rank"
            )
            short = f"{early.short} before the all-reduce over {over}"
        return Pattern("partial sum", f"{name} equals the {relation}", axis, cause, short=short)
    if found.nearest is not None:
        return Pattern(
            "scaled",
            f"{found.node.name} equals {found.nearest}",
            cause=_cause_of_factor(found.nearest, found.problem.mesh),
            factor=float(1 / found.nearest.factor),
        )
    return None


#: Operators that scale a term, or give it another shape, so that it is still a term of a sum.
_OF_TERMS = frozenset(
    f"aten.{name}"
    for name in ("mul", "div", "neg", "view", "reshape", "sum", "clone", "_to_copy", "detach")
)


def _reduced_later(ranks: Sequence[Graph], relation: Relation) -> Node | None:
    """The operator that sums the ranks' terms after others that keep them terms; None if none does.

    The sum itself must not come first: then nothing is changed before it.
    """
    for graph in ranks:
        terms, first = {*relation.names}, {*relation.names}
        for node in graph.nodes:
            if not terms.isdisjoint(node.inputs):
                if _reduces(node) and first.isdisjoint(node.inputs):
                    return node
                if node.short in _OF_TERMS:
                    terms.add(node.name)
    return None


def _before_reduction(found: Refutation, relation: Relation) -> Node | None:
    """The operator of a rank, like the refuted one, that takes a term before it is reduced.

    None unless every rank that has such an operator reduces its result, and no rank the term.
    """
    early: list[Node] = []
    for graph in found.problem.ranks:
        reduced = _reduced(graph)
        taking = [
            node
            for node in graph.nodes
            if node.short == found.operator.short and {*relation.names} & {*node.inputs}
        ]
        if {*relation.names} & reduced or not any(node.name in reduced for node in taking):
            return None
        early += [node for node in taking if node.name in reduced]
    return early[0] if early else None


#: Operators that only copy, or cut into the parts that a reduce-scatter takes.
_COPIES = frozenset(
    ("aten.clone", "aten.view", "aten.reshape", "aten.split", "aten.chunk", "aten.slice", "getitem")
)


def _reduced(graph: Graph) -> set[str]:
    """The tensors that an operator of the graph sums over ranks, as they are or as a copy."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if _reduces(node) or (node.short in _COPIES and node.name in found):
            found.update(node.inputs)
    return found


def _reduces(node: Node) -> bool:
    """Whether a node sums tensors of ranks."""
    return node.short.rpartition(".")[2].startswith(("all_reduce", "reduce_scatter"))


def _cause_of_factor(found: Nearest, mesh: RankMesh) -> str:
    """Why a tensor is a multiple; the mean of the ranks' terms is what an average makes of them."""
    sums = [step.axis for step in found.relation.steps if step.kind == "sum"]
    if len(sums) == 1 and sums[0] and found.factor * mesh.axes[sums[0]] == 1:
        return f"an average over {sums[0]} is missing, is a sum, or another factor is wrong"
    return "a factor is wrong, missing, or applied twice"
