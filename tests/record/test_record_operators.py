"""Operators of the program are recorded with their lines and the hashes of their results."""

from __future__ import annotations

import pytest

from pytest_trainsafe.trace.operators import OperatorEvent
from tests.support.record import operator_runs


@pytest.fixture
def operators(tmp_path) -> list[OperatorEvent]:
    trace = operator_runs.recorded(tmp_path, lambda: None, step=0)
    return trace.ranks[0].events_of(OperatorEvent)


def test_an_operator_that_draws_is_recorded_at_the_programs_line(operators):
    drawn = [event for event in operators if event.name == "aten.rand.default"]

    assert [event.at.rpartition(":")[0] for event in drawn] == [operator_runs.__file__]


def test_one_element_that_is_expanded_has_a_hash(operators):
    # The gradient of a sum is such a tensor: it is contiguous, and its strides are 0.
    expanded = [event for event in operators if event.name == "aten.expand.default"]

    assert [bool(event.outputs) for event in expanded] == [True]
