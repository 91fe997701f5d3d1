"""With torch_autocast parameters stay in float32, and the forward is autocast on both sides."""

from __future__ import annotations

import deepspeed_programs
import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.fixtures.deepspeed.config import read_config

AUTOCAST = {"torch_autocast": {"enabled": True, "lower_precision_safe_modules": []}}


def test_the_rung_says_whether_a_run_is_autocast_and_to_what(tmp_path) -> None:
    config = read_config(AUTOCAST, tmp_path)
    given = {
        "stage": 2,
        "microbatches": 2,
        "dp": 1,
        "tp": 1,
        "clip": True,
        "bucket": 0,
        "overlap_comm": False,
        "offload": False,
        "cpu": True,
    }

    narrow, wide = (config.completed(dtype=each, **given) for each in ("bfloat16", "float32"))

    assert narrow["torch_autocast"] == {
        "enabled": True,
        "dtype": "bfloat16",
        "lower_precision_safe_modules": [],
    }
    assert narrow["bf16"] == {"enabled": False}
    assert wide["torch_autocast"]["enabled"] is False


@pytest.mark.trainsafe(
    deepspeed_programs.odd_parameters,
    zero=2,
    dtype="bfloat16",
    args={"config": {"torch_autocast": {"enabled": True}}},
)
def test_an_autocast_training_passes_with_its_parameters_in_float32(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    assert_trainsafe(candidate_trace, reference_trace)
    for traces in (candidate_trace, reference_trace):
        (rank,) = traces.at("bfloat16").ranks
        kinds = {event.id.kind: event.dtype for event in rank.tensors.values()}
        assert rank.note("autocast") == ["bfloat16"]
        assert kinds["param"] == "float32"
        assert not traces.at("float32").ranks[0].note("autocast")
