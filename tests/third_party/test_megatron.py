"""megatron-core on a CPU: clean programs pass, planted bugs are found where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-third-party")

import megatron_gpt

from pytest_trainsafe import assert_trainsafe

FOLDER = Path(__file__).parent


@pytest.mark.trainsafe(megatron_gpt.train, tp=[1, 2], sp=[False, True], pp=[1, 2])
def test_megatron_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(megatron_gpt.train, dp=[2], zero=[0, 1])
def test_megatron_data_parallel_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


BUGS = [
    ("norm_without_mark", {"tp": 2, "sp": True}, "decoder.final_layernorm.weight · param_grad"),
    ("input_gradient", {"tp": 2}, "decoder.layers.1.input_layernorm.output · activation_grad"),
    ("mean_over_dp", {"dp": 2}, "grad_norm"),  # clipping takes the factor out of main gradients
]


@pytest.mark.parametrize(("bug", "axes", "first"), BUGS, ids=[bug for bug, *_ in BUGS])
def test_a_bug_of_the_backward_starts_where_it_is(bug, axes, first, pytester):
    pytester.makepyfile(
        f"""
        import sys
        sys.path.insert(0, {str(FOLDER)!r})
        import megatron_gpt, pytest
        from pytest_trainsafe import assert_trainsafe

        @pytest.mark.trainsafe(megatron_gpt.train, candidate_args={{"bug": {bug!r}}}, **{axes!r})
        def test_bug(candidate_trace, reference_trace):
            assert_trainsafe(candidate_trace, reference_trace)
        """
    )
    result = pytester.runpytest_subprocess("-q", "--trainsafe-localize", "0")
    result.assert_outcomes(failed=1)
    start = next(line for line in result.outlines if "starts at" in line)
    assert first in start
