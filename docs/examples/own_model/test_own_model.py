"""pytest docs/examples/own_model, or from a copy of this folder: pytest"""

from __future__ import annotations

import pytest

from pytest_trainsafe import Traces, assert_trainsafe

from .train import train


@pytest.mark.trainsafe(train, tp=[1, 2], dp=[1, 2])
def test_it_trains_like_one_device(candidate_trace: Traces, reference_trace: Traces) -> None:
    assert_trainsafe(candidate_trace, reference_trace)
