"""Whole steps of the reference programs are captured and proved; planted bugs are refuted."""

import random

import pytest

from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.certificate.write import certificate_of
from pytest_trainsafe.judges.refine.errors import CannotSayError, GraphError
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove
from pytest_trainsafe.reference_models import deepseek, gpt, llama, moe
from pytest_trainsafe.reference_models.captured import captured
from pytest_trainsafe.reference_models.graph_mutations import (
    KINDS,
    changes_function,
    drawn,
    mutated,
    mutations,
)

SIZES = {
    "layers": 1, "hidden": 8, "heads": 4, "seq_len": 8, "batch_size": 2, "vocabulary": 16,
    "microbatches": 2,
}  # fmt: skip


#: A DeepSeek without routed experts.
NARROW = {"dense_layers": 2, "q_rank": 6, "kv_rank": 4, "rope_dim": 2, "ffn": 8}


def problem(program, axes, **settings):
    found = captured(program, axes, **{**SIZES, **settings})
    return stated_problem(found.sequential, found.ranks, found.relation)


POINTS = [
    (gpt.train, {"tp": 2, "sp": True}, {"microbatches": 1}),
    (gpt.train, {"dp": 2, "zero": 1}, {}),
    (gpt.train, {"pp": 2}, {"layers": 2}),
    (llama.train, {"cp": 2}, {"cp_method": "ring"}),
    (deepseek.train, {"tp": 2, "sp": True}, {**NARROW, "microbatches": 1}),
    (moe.train, {"dp": 4, "ep": 2}, {"microbatches": 4}),
    (gpt.train, {"tp": 2}, {"microbatches": 1, "clip": 1e-3, "conditions": ([True], [])}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "axes", "settings"), POINTS)
def test_a_whole_step_is_proved_with_its_update(program, axes, settings):
    given = problem(program, axes, **settings)
    proof = prove(given)
    assert isinstance(proof, Proof)
    updated = [name for name in proof.outputs if name.startswith("new.")]
    assert len(updated) == len(given.inputs)
    certificate = certificate_of(proof, given, 0)
    assert check(certificate, given.sequential, given.ranks, seed=5) > 100


#: Bugs of the corpus, and the first result that each makes wrong.
BUGS = [
    ("tp-embedding-mask", {"tp": 2}, {}),
    ("sp-layernorm-grads", {"tp": 2, "sp": True}, {}),
    ("cp-loss-scaling", {"cp": 2}, {}),
    ("dp-gradient-scaling", {"dp": 2, "cp": 2}, {"bucket": 4096}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "axes", "settings"), BUGS)
def test_a_bug_of_the_corpus_is_refuted_in_the_whole_step(bug, axes, settings):
    found = prove(problem(gpt.train, axes, bug=bug, **settings))
    assert isinstance(found, Refutation)
    assert found.wrong


@pytest.fixture(scope="module")
def step():
    return problem(gpt.train, {"tp": 2, "sp": True}, microbatches=1)


def test_a_whole_step_is_proved_and_without_one_reduction_refuted(step):
    assert isinstance(prove(step), Proof)
    (skipped, *_) = mutations(step.ranks[0], "missing all-reduce")
    assert changes_function(step, mutated(step, skipped, [0, 1]), [1])
    assert isinstance(prove(mutated(step, skipped, [0, 1])), Refutation)


@pytest.mark.slow
def test_no_mutation_of_a_step_is_certified_that_computes_otherwise(step):
    chance = random.Random(39)
    outcomes = set()
    for number in range(4):
        mutation = drawn(step.ranks[number % 2], chance)
        other = mutated(step, mutation, [number % 2])
        try:
            certified = isinstance(prove(other), Proof)
        except (CannotSayError, GraphError):
            certified = False
        changes = changes_function(step, other, [1])
        outcomes.add((certified, changes))
        assert not (certified and changes), str(mutation)
    assert (False, True) in outcomes


def test_each_kind_of_mutation_fits_some_step(step):
    fitting = {kind for kind in KINDS if mutations(step.ranks[0], kind)}
    assert len(fitting) >= 15
