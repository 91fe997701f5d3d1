"""Mutated graphs: is each refuted at its operator, and is none certified that computes otherwise?

    python benchmarks/bench_refine_mutants.py --random 200 [--seed SEED] [--no-table]

Three captures of whole training steps are mutated, once by each kind of mutation that fits, and
then at random, on one rank or on all.  Float64 decides whether a mutation changes what the graphs
compute.  It exits with 1 if a mutation that does is certified.

The right operators follow from float64 and from the relations of the graphs without the mutation,
not from those of the mutated ones.  A sequential tensor is lost if each of its relations takes a
tensor of a rank that the mutation changed, unless the ranks have it with its dimensions turned, or
as terms of a sum; a result is lost if its expected relation takes one.
The right operators are those that make a lost tensor of tensors that are not lost, and, where
tensors between them have no counterpart in the ranks even without the mutation, those that make
these.
"""

from __future__ import annotations

import argparse
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from pytest_trainsafe.judges.one_thread import one_thread
from pytest_trainsafe.judges.refine.errors import (
    CannotSayError,
    GraphError,
    InputRelationError,
)
from pytest_trainsafe.judges.refine.evaluate.run import Evaluated, evaluated
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove
from pytest_trainsafe.judges.refine.relations.combine import combine
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step
from pytest_trainsafe.judges.refine.search.frontier import tensors_of
from pytest_trainsafe.reference_models import gpt, llama
from pytest_trainsafe.reference_models.captured import Program, captured
from pytest_trainsafe.reference_models.graph_mutations import (
    KINDS,
    Mutation,
    changed_tensors,
    changes_function,
    drawn,
    mutated,
    mutations,
)

SIZES: dict[str, Any] = {
    "layers": 1,
    "hidden": 8,
    "heads": 4,
    "seq_len": 8,
    "batch_size": 2,
    "vocabulary": 16,
}
CAPTURES: dict[str, tuple[Program, dict[str, Any], dict[str, Any]]] = {
    "GPT tp=2 sp": (gpt.train, {"tp": 2, "sp": True}, {"microbatches": 1}),
    "GPT tp=2": (gpt.train, {"tp": 2}, {"microbatches": 1}),
    "Llama tp=2 sp": (llama.train, {"tp": 2, "sp": True}, {"microbatches": 1}),
}


#: Operators whose result is their input, or their input with its dimensions turned.
_TURNING = ("aten.t", "aten.transpose", "aten.permute", "aten.clone", "aten.alias", "aten.detach")


def verdict(problem: Problem) -> Proof | Refutation | str:
    """The proof or refutation, or why nothing can be said or the graph is refused."""
    try:
        return prove(problem)
    except (CannotSayError, GraphError) as error:
        return type(error).__name__


def right_operators(clean: Proof, problem: Problem, other: Problem) -> set[str]:
    """The names of the right operators (see above)."""
    changed = {name for _, name in changed_tensors(problem, other, 1)}
    (run,) = evaluated(other, 1, [])
    graph = problem.sequential
    lost = {
        name
        for name, found in clean.relations.items()
        if found
        and all(set(each.names) & changed for each in found)
        and not still_there(run, problem.mesh, name, found)
    }
    for node in graph.nodes:  # Of a transposition or a copy, the ranks still have its input.
        if node.name in lost and node.short in _TURNING and not lost & set(node.inputs):
            lost.remove(node.name)
    lost |= {name for name, each in clean.outputs.items() if set(each.names) & changed}
    right: set[str] = set()
    for name in lost:
        passed, waiting, before = {name}, [name], set[str]()
        while waiting:
            made_of = set(tensors_of(graph, run.sequential, waiting.pop()))
            between = made_of & set(clean.missing) - passed
            passed |= between
            before |= made_of - between
            waiting += between
        if not lost & before:
            right |= passed
    return right


def still_there(run: Evaluated, mesh: RankMesh, name: str, relations: Sequence[Relation]) -> bool:
    """Whether the ranks have a tensor in another way than by its relations."""
    x = run.sequential[name]
    return isinstance(x, torch.Tensor) and any(
        _makes(other, x, run, mesh)
        for relation in relations
        for other in (*_turned(relation, x.ndim), *_summed(relation, run, mesh))
    )


def _turned(relation: Relation, ndim: int) -> Iterator[Relation]:
    """A relation of a matrix with its dimensions swapped."""
    if ndim == 2:
        steps = tuple(
            replace(each, dim=1 - each.dim) if each.kind == "concat" else each
            for each in relation.steps
        )
        yield Relation((Step("permute", numbers=(1, 0)), *steps), relation.names)


def _summed(relation: Relation, run: Evaluated, mesh: RankMesh) -> Iterator[Relation]:
    """A replica as a sum of the ranks' terms, which differ: a sum of equal ones is a multiple."""
    (name, *others) = relation.names
    terms = [term for values in run.ranks if isinstance(term := values.get(name), torch.Tensor)]
    same = all(each.equal(terms[0]) for each in terms)
    if not others and not same:
        axes = [axis for axis in mesh.axes if axis not in {step.axis for step in relation.steps}]
        for axis in axes:
            yield Relation((Step("sum", axis), *relation.steps), relation.names)


def _makes(relation: Relation, x: torch.Tensor, run: Evaluated, mesh: RankMesh) -> bool:
    with suppress(InputRelationError):
        made = combine(relation, run.ranks, mesh, run.numbers)
        return made.shape == x.shape and torch.allclose(made, x, rtol=1e-9, atol=1e-12)
    return False


def by_kind(name: str, clean: Proof, problem: Problem, chance: random.Random) -> list[str]:
    """One mutation of each kind on all ranks; returns the rows of the table."""
    rows = []
    everywhere = range(len(problem.ranks))
    for kind in KINDS:
        fitting = mutations(problem.ranks[0], kind)
        chance.shuffle(fitting)
        for mutation in fitting[:12]:
            other = mutated(problem, mutation, everywhere)
            if changes_function(problem, other, [1]):
                said = row(name, clean, problem, other, mutation)
                if said.endswith(GraphError.__name__):
                    continue  # It is no graph any more, such as a view of other strides.
                rows.append(said)
                break
        else:
            rows.append(f"{name:16} {kind:34} none of {len(fitting)} changes the results")
    return rows


def row(name: str, clean: Proof, problem: Problem, other: Problem, mutation: Mutation) -> str:
    found = verdict(other)
    if isinstance(found, Proof):
        return f"{name:16} {mutation!s:50} CERTIFIED"
    if isinstance(found, str):
        return f"{name:16} {mutation!s:50} {found}"
    right = found.node.name in right_operators(clean, problem, other)
    place = "at the right operator" if right else "elsewhere"
    return f"{name:16} {mutation!s:50} refuted {place}: {found.node.name}"


def at_random(problem: Problem, chance: random.Random) -> str:
    """The outcome of one random mutation on one rank or all."""
    number = chance.randrange(len(problem.ranks))
    mutation = drawn(problem.ranks[number], chance)
    everywhere = chance.random() < 0.5
    other = mutated(problem, mutation, range(len(problem.ranks)) if everywhere else [number])
    found = verdict(other)
    if not isinstance(found, Proof):
        return "refused" if isinstance(found, str) else "refuted"
    if changes_function(problem, other):
        print(f"CERTIFIED, although it computes otherwise: {mutation}")
        return "proof, another function"
    return "proof, the same function"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, default=200, help="How many random mutations")
    parser.add_argument("--seed", type=int, help="The seed of the mutations; drawn by default")
    parser.add_argument("--no-table", action="store_true", help="Only the random mutations")
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    print(f"torch {torch.__version__}, seed {seed}", flush=True)
    chance = random.Random(seed)
    problems = {}
    wrong = 0
    for name, (program, axes, settings) in CAPTURES.items():
        found = captured(program, axes, **SIZES, **settings)
        problems[name] = stated_problem(found.sequential, found.ranks, found.relation)
        if given.no_table:
            continue
        clean = prove(problems[name])
        assert isinstance(clean, Proof), name
        rows = by_kind(name, clean, problems[name], chance)
        wrong += sum("CERTIFIED" in each for each in rows)
        print("\n".join(rows), flush=True)
        right = sum("at the right operator" in each for each in rows)
        print(f"{name}: {right} of {len(rows)} refuted at the right operator", flush=True)
    counts: Counter[str] = Counter()
    start = time.process_time()
    for number in range(given.random):
        counts[at_random(problems[chance.choice(sorted(problems))], chance)] += 1
        if number % 20 == 19:
            print(f"{number + 1}: {dict(sorted(counts.items()))}", flush=True)
    for outcome, count in sorted(counts.items()):
        print(f"{count:5} {outcome}")
    print(f"{time.process_time() - start:.0f} CPU s for {given.random} random mutations")
    return int(wrong + counts["proof, another function"] > 0)


if __name__ == "__main__":
    with one_thread():
        raise SystemExit(main())
