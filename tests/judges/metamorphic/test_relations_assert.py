"""`assert_same_by`: changes without effect, exact bits, draws, and relations of a project."""

from __future__ import annotations

import re

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_same_by, relations
from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError, RelationError
from pytest_trainsafe.fuzz.failures.flaky import repeated
from pytest_trainsafe.judges.joint import JointJudgement, summary_of
from pytest_trainsafe.judges.metamorphic.judge import judge_relation
from tests.support.metamorphic import relation_programs
from tests.support.metamorphic.relation_runs import fixture_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The trace fixture of a linear model."""
    return fixture_of(relation_programs.train, tmp_path_factory.mktemp("linear"))


def test_the_order_relation_is_inconclusive_if_the_program_ignores_the_order(tmp_path):
    trained = fixture_of(relation_programs.train, tmp_path, {"own_numbers": True})

    with pytest.raises(TrainsafeFailure) as failure:
        assert_same_by("order", trained)

    [finding] = failure.value.findings
    assert (finding.verdict, finding.check) == ("inconclusive", "relation:effect")
    assert "does not take the numbers of its micro-batches from ctx.microbatches" in finding.message
    assert "inconclusive, so not a pass" in str(failure.value)
    assert_same_by("order", trained, accept=["relation:effect"])


def test_a_relation_that_changes_an_unused_argument_is_inconclusive(trained):
    with pytest.raises(TrainsafeFailure, match="does not use the arguments that the relation"):
        assert_same_by(relations.Vocabulary("unused", size="batch_size"), trained)


def test_a_relation_defined_by_a_project_compares_through_its_view(trained):
    assert_same_by(relation_programs.Shift(), trained)


def test_a_missing_view_of_a_projects_relation_fails_at_the_first_differing_tensor(trained):
    class NotRotated(relation_programs.Shift):
        def views(self, setting):
            return None, None

    with pytest.raises(TrainsafeFailure) as failure:
        assert_same_by(NotRotated(), trained)

    looked = re.search(r"^  look at       (\S+)", str(failure.value), re.MULTILINE)
    assert looked is not None
    assert failure.value.line.endswith(f", at {looked[1]}")
    judgement = judge_relation(trained, NotRotated(), [], [])
    summary = summary_of(JointJudgement([judgement]), trained.case)
    assert relative(summary["look_at"]["source"]) == looked[1]
    where = failure.value.findings[0].where
    assert where is not None
    assert where.microbatch == 0
    assert where.kind in ("input", "activation")


def test_bits_must_be_equal_only_if_the_relation_is_exact(trained):
    # Rounding differs if four terms are added in another order.
    order = [1, 2, 3, 0]
    assert_same_by(relations.Order(order), trained)

    with pytest.raises(TrainsafeFailure) as failure:
        assert_same_by(relations.Order(order, exact=True), trained)

    [finding] = failure.value.findings
    assert (finding.verdict, finding.check) == ("fail", "relation:bits")
    assert "recorded tensors differ in bits" in " ".join(str(failure.value).split())


def test_a_failure_of_the_order_relation_mentions_draws_from_torchs_generators(tmp_path):
    trained = fixture_of(relation_programs.train, tmp_path, {"noise": True})

    with pytest.raises(TrainsafeFailure, match="the steps draw from torch's default generators"):
        assert_same_by("order", trained)


def test_a_repeated_fixture_requests_both_runs_again(trained):
    assert_same_by("order", repeated(trained))

    asked = [spec for spec in trained.runs.specs if spec.repeat == 1]
    assert {bool(spec.order) for spec in asked} == {False, True}


def test_tensors_of_ignored_modules_are_counted_as_not_compared(trained):
    assert_same_by(relations.Order(ignore=("2", "2.*")), trained)

    notes = [note for note in trained.runs.notes if note.startswith("the relation 'order'")]
    assert "the relation 'order', not compared: 8 tensors of kind activation" in notes[0]


def test_the_name_of_a_relation_that_the_program_does_not_declare_is_refused(trained):
    with pytest.raises(ArgumentError, match=r"offers no relation .odrer.; did you mean .order."):
        assert_same_by("odrer", trained)


def test_a_relation_that_needs_an_argument_the_program_lacks_is_refused(trained):
    with pytest.raises(
        ArgumentError, match=r"Padding\(argument='padding'\) .* which has no parameter 'padding'"
    ):
        assert_same_by(relations.Padding(), trained)


def test_a_change_of_an_unknown_argument_is_refused(trained):
    class Unknown(relation_programs.Shift):
        def change(self, setting):
            return relations.Change({"shifts": 1})

    with pytest.raises(ArgumentError, match=r"neither an axis nor a parameter of .*; did you mean"):
        assert_same_by(Unknown(), trained)


def test_a_change_to_a_point_at_which_the_program_cannot_run_is_refused(trained):
    class Ranks(relation_programs.Shift):
        def change(self, setting):
            return relations.Change({"sp": True})

    with pytest.raises(RelationError, match=r"does not apply .* cannot run: sp needs tp > 1"):
        assert_same_by(Ranks(), trained)


def test_a_relation_with_a_reason_not_to_hold_is_refused_with_the_reason(trained):
    relation = relations.Order(unless=lambda setting: "its buffers carry over")

    with pytest.raises(RelationError, match=r"need not hold for .*: its buffers carry over"):
        assert_same_by(relation, trained)


def test_an_exact_relation_with_views_is_refused(trained):
    with pytest.raises(ArgumentError, match="'split' cannot be exact"):
        assert_same_by(relations.Split(exact=True), trained)


@pytest.mark.parametrize("given", [3, None, relations.Order])
def test_a_value_that_is_no_relation_is_refused(trained, given):
    with pytest.raises(ArgumentTypeError, match=r"pass the name of a relation .*order"):
        assert_same_by(given, trained)


def test_a_value_that_is_no_trace_fixture_is_refused():
    with pytest.raises(ArgumentTypeError, match="pass the fixture candidate_trace"):
        assert_same_by(relations.Order(), "a/trace")  # type: ignore[arg-type]
