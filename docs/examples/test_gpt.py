"""The main job: a GPT must train in parallel as it trains on one device.

Run it with `pytest docs/examples/test_gpt.py --trainsafe-sweep tp=1,2 cp=1,2`.
"""

import pytest

from pytest_trainsafe import Traces, assert_trainsafe
from pytest_trainsafe.reference_models import gpt


@pytest.mark.trainsafe(gpt.train, tp=[1, 2], cp=[1, 2])
def test_gpt_trains_like_one_device(candidate_trace: Traces, reference_trace: Traces) -> None:
    assert_trainsafe(candidate_trace, reference_trace)
