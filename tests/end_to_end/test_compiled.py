"""The reference models train compiled as they do on one device in plain Python."""

import shutil

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import cnn, gpt, llama

# What torch.compile builds C++ with on CPUs, unless CXX names another.
COMPILER = shutil.which("g++") or shutil.which("clang++")

# Small: what takes time is compiling.
SMALL = {"layers": 1, "hidden": 16, "heads": 2, "seq_len": 8, "vocabulary": 32}
EAGER = {"compile_backend": "aot_eager"}


@pytest.mark.skipif(COMPILER is None, reason="torch.compile on CPUs needs a C++ compiler (g++)")
@pytest.mark.trainsafe(gpt.train, dp=2, compile=True, dtype=["float32"], args=SMALL)
def test_the_gpt_compiled_by_inductor_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, tp=2, compile=True, args=SMALL, candidate_args=EAGER)
def test_a_compiled_model_may_be_cut(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(
    llama.train,
    dp=2,
    compile=True,
    args={**SMALL, "kv_heads": 1, "ffn": 16},
    candidate_args=EAGER,
)
def test_the_llama_compiled_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(cnn.train, dp=2, compile=True, candidate_args=EAGER)
def test_the_cnn_compiled_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
