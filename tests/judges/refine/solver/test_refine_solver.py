"""The second engine: z3 proves stages, refutes wrong ones, and is ended where it takes too long."""

import os

import pytest

from pytest_trainsafe import ArgumentError, TrainsafeFailure, assert_refines
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, prove
from pytest_trainsafe.judges.refine.relations.parse import parse_relation
from pytest_trainsafe.judges.refine.solver import workers
from pytest_trainsafe.judges.refine.solver.stages import stages
from pytest_trainsafe.judges.refine.solver.workers import Limits
from pytest_trainsafe.judges.refine.solver.z3 import Answer, answer, refuted
from tests.support.refine.graphs import RANK, RELATION, SEQUENTIAL, mlp

pytest.importorskip("z3")


def proof_of(problem):
    found = prove(problem)
    assert isinstance(found, Proof)
    return found


def stages_of(problem, *names):
    found = proof_of(problem)
    return list(stages(found.problem, found.relations, names))


def test_both_engines_prove_every_stage_of_a_block():
    certificate = assert_refines(SEQUENTIAL, [RANK] * 2, RELATION, second_engine=True)
    assert certificate.engines == dict.fromkeys(
        ["mm", "gelu", "mm_1", "add", "_softmax", "view", "index"], "both"
    )


def test_a_sum_over_ranks_is_simplified_and_what_is_computed_alike_is_the_same_term():
    reasons = {each.tensor: answer(each).reason for each in stages_of(mlp())}
    assert reasons["gelu"] == "the same terms"
    assert reasons["mm_1"] == "simplified"


@pytest.mark.parametrize(
    ("old", "new"), [("'sum'", "'avg'"), ("add.Tensor(x, wait)", "add.Tensor(x, mm_1)")]
)
def test_a_stage_that_the_field_refutes_is_refuted_by_z3(old, new):
    """The stage of the first tensor after the all-reduce, with the relation that it should have."""
    clean = proof_of(mlp())
    wrong = mlp(*[RANK.replace(old, new)] * 2)
    assert not isinstance(prove(wrong), Proof)
    first = parse_relation("at tp=0", "add", wrong.mesh.axes)  # The ranks need not be replicas.
    (stage,) = stages(wrong, {**clean.relations, "mm_1": (), "add": (first,)}, ["add"])
    found = refuted(stage)
    assert (found.verdict, found.reason) == ("different", "there are values for which they differ")


IDENTITY = """
    def forward(self, x: "f32[4]"):
        {}
        return (y,)
"""


def test_an_identity_of_a_function_is_open_and_never_different():
    """The root of a product is the product of roots, as the field knows."""
    whole = IDENTITY.format('a: "f32[4]" = torch.ops.aten.mul.Tensor(x, 3.0); '
                            'y: "f32[4]" = torch.ops.aten.sqrt.default(a)')  # fmt: skip
    rank = IDENTITY.format(
        'a: "f32[4]" = torch.ops.aten.sqrt.default(x); '
        'y: "f32[4]" = torch.ops.aten.mul.Tensor(a, 1.7320508075688772)'
    )
    given = stated_problem(parse_fx(whole), [parse_fx(rank)], {"inputs": {"x": "replica"}})
    (stage,) = stages_of(given, "y")
    found = refuted(stage)
    assert found.verdict == "open"
    assert "identity" in found.reason


def test_the_engines_that_contradict_each_other_are_inconclusive(monkeypatch):
    monkeypatch.setattr(
        workers,
        "answers",
        lambda given, _: [Answer(each.tensor, "different", "x") for each in given],
    )
    with pytest.raises(TrainsafeFailure, match="the engines do not agree about mm"):
        assert_refines(SEQUENTIAL, [RANK] * 2, RELATION, second_engine=True)


def forever(_):
    while True:
        pass


def too_large(_):
    raise MemoryError


@pytest.mark.parametrize(
    ("work", "reason"),
    [(forever, "time"), (too_large, "memory"), (lambda _: os._exit(1), "the process ended")],
)
def test_a_stage_beyond_its_limits_is_open_and_the_others_are_answered(monkeypatch, work, reason):
    given = stages_of(mlp())

    def answered(stage):
        return work(stage) if stage.tensor == "gelu" else answer(stage)

    monkeypatch.setattr(workers, "answer", answered)
    found = workers.answers(given, Limits(seconds=20 if reason != "time" else 4))
    assert [each.tensor for each in found] == [each.tensor for each in given]
    open_ones = {each.tensor: each.reason for each in found if each.verdict != "equal"}
    assert open_ones == {"gelu": reason}


def test_without_z3_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(workers, "solver", lambda: None)
    with pytest.raises(ArgumentError, match=r"pytest-trainsafe\[prove\]"):
        assert_refines(SEQUENTIAL, [RANK] * 2, RELATION, second_engine=True)
