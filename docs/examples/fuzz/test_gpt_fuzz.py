"""A fuzz test: hypothesis draws Points of a small GPT, each compared with a single device."""

import pytest

pytest.importorskip("hypothesis", reason="pip install 'pytest-trainsafe[fuzz]'")

from pytest_trainsafe import assert_trainsafe, trainsafe_fuzz
from pytest_trainsafe.reference_models import gpt


@trainsafe_fuzz(
    gpt.train,
    max_examples=3,
    max_world_size=2,
    tp=...,
    cp=...,
    dp=...,
    dtype=["float64"],
    args={"hidden": 8, "heads": 2, "seq_len": 4, "batch_size": 1, "layers": 1, "steps": 1},
)
def test_gpt_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
