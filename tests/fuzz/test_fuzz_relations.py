"""Fuzz tests assert relations at the Points that hypothesis draws, in real ranks."""

from __future__ import annotations

import re

import pytest

import pytest_trainsafe.fuzz.failures.explain as explain
import pytest_trainsafe.fuzz.runner as runner
from pytest_trainsafe import FuzzFailure, Point, TrainsafeFailure, trainsafe_fuzz
from pytest_trainsafe.config.settings import SETTINGS, Settings
from pytest_trainsafe.errors import (
    ArgumentError,
    ArgumentTypeError,
    RelationError,
    TrainsafeWarning,
)
from pytest_trainsafe.fuzz.examples import Examples
from pytest_trainsafe.fuzz.source import point_source
from pytest_trainsafe.judges.metamorphic.relations import Vocabulary
from pytest_trainsafe.judges.metamorphic.relations.offers import find_relations
from pytest_trainsafe.reference_models import masked
from pytest_trainsafe.sweep.search.space import no_rule
from pytest_trainsafe.sweep.signature import FUZZING

SMALL = {"hidden": 8, "vocabulary": 16, "steps": 1}


@pytest.fixture
def examples(request):
    """Makes the Examples of the program, in this test's session, with this test as their item."""

    def make(names, **axes):
        source = point_source(masked.train, 2, axes)
        source.relations = find_relations(source.declaration.program, names, "trainsafe_fuzz")
        source.alone = True
        source.begin(request.config.stash[SETTINGS]._replace(dtypes=("float64",)), no_rule)
        source.examples = Examples(request.node, source, frozenset())
        return source.examples

    return make


@pytest.mark.slow
@pytest.mark.processes
def test_a_fault_that_every_run_has_is_found_by_a_relation_and_reduced_to_dp(examples):
    """Each rank's mean over its own tokens changes with which samples the rank has."""
    arguments = {**SMALL, "microbatches": 4, "fault": "mean-per-rank"}
    made = examples(["order"], dp=[1, 2], args=arguments)

    with pytest.raises(FuzzFailure) as failure:
        made.run(Point.of(dp=2), lambda: None)

    assert [effect.axis for effect in failure.value.interaction.needs] == ["dp"]
    assert "under the relation order" in str(failure.value)
    lead = failure.value.findings[0]
    assert lead.where is not None
    assert lead.where.kind == "loss"


def test_relations_are_asserted_at_each_point_and_their_failures_are_reduced(examples, monkeypatch):
    calls = []

    def assert_same_by(relation, traces):
        calls.append((relation.name, traces.case.point))
        if traces.case.point.size("dp") > 1:
            raise TrainsafeFailure("planted")

    monkeypatch.setattr(runner, "assert_same_by", assert_same_by)
    # The failure is planted, so that its Runs are the same when they are repeated.
    monkeypatch.setattr(explain, "difference_text", lambda candidate, findings: "")
    made = examples(["order", "split"], dp=[1, 2], layers=[1, 2], args=SMALL)

    made.run(Point.of(dp=1, layers=2), lambda: None)
    with pytest.raises(FuzzFailure) as failure:
        made.run(Point.of(dp=2, layers=2), lambda: None)

    assert calls[:2] == [(name, Point.of(dp=1, layers=2)) for name in ("order", "split")]
    assert failure.value.interaction.point == Point.of(dp=2, layers=1)
    assert [effect.axis for effect in failure.value.interaction.needs] == ["dp"]


def test_a_relation_that_applies_at_no_point_causes_a_warning(examples, monkeypatch):
    def assert_same_by(relation, traces):
        raise RelationError("its steps have one micro-batch")

    monkeypatch.setattr(runner, "assert_same_by", assert_same_by)
    made = examples(["order"], dp=[1], args=SMALL)
    made.run(Point.of(dp=1), lambda: None)

    words = r"the relation 'order' applied at none of the 1 points.*its steps have one micro-batch"
    with pytest.warns(TrainsafeWarning) as warned:
        made.publish()

    assert any(re.search(words, str(each.message)) for each in warned)


def test_relations_that_the_program_does_not_offer_are_refused_by_the_decorator():
    with pytest.raises(ArgumentError, match=r"masked\.train offers no relation 'sort'"):
        trainsafe_fuzz(masked.train, dp=..., relations=["sort"])
    with pytest.raises(ArgumentError, match=r"Vocabulary\(size='words'\) for masked\.train"):
        trainsafe_fuzz(masked.train, dp=..., relations=[Vocabulary(size="words")])
    with pytest.raises(ArgumentTypeError, match="must be a list of relations"):
        trainsafe_fuzz(masked.train, dp=..., relations="order")


def test_single_devices_are_drawn_only_with_relations_and_without_a_reference():
    def alone(candidate_trace):
        pass

    def compared(candidate_trace, reference_trace):
        pass

    def drawn(test, **words):
        made = trainsafe_fuzz(masked.train, dp=[1, 2], **words)(test)
        source = getattr(made, FUZZING).args[0]
        source.begin(Settings(), no_rule)
        return [*source.space.bases]

    assert drawn(alone, relations=["order"]) == [(1,), (2,)]
    assert drawn(compared, relations=["order"]) == [(2,)]
    assert drawn(alone) == [(2,)]
