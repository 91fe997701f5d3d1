"""The program trains the same under each relation that it offers."""

import pytest

from pytest_trainsafe import assert_same_by

from .train import train


@pytest.mark.parametrize("relation", ["split", "order", "padding", "loss-scale"])
@pytest.mark.trainsafe(train, dtype=["float64"])
def test_trains_the_same(candidate_trace, relation):
    assert_same_by(relation, candidate_trace)
