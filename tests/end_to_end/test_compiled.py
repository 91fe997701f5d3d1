"""Compiled reference models train like the uncompiled models on one device."""

import os
import shutil
from pathlib import Path

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import cnn, gpt

# The C++ compiler that torch.compile uses on CPUs, unless CXX names another.
COMPILER = shutil.which("g++") or shutil.which("clang++")

# A small model, since most of the time is compilation.
SMALL = {"layers": 1, "hidden": 16, "heads": 2, "seq_len": 8, "vocabulary": 32}


@pytest.fixture
def compiled_for_this_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiles anew if a variable limits the CPU's instructions.

    torch's cache of compiled code does not depend on this variable.
    """
    if "ATEN_CPU_CAPABILITY" in os.environ:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


# Where nothing is cached yet, a C++ compiler takes more than a minute.
@pytest.mark.slow
@pytest.mark.usefixtures("compiled_for_this_cpu")
@pytest.mark.skipif(COMPILER is None, reason="torch.compile on CPUs needs a C++ compiler (g++)")
@pytest.mark.trainsafe(gpt.train, compile=True, dtype=["float32"], args=SMALL)
def test_the_gpt_compiled_by_inductor_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    cnn.train,
    dp=2,
    compile=True,
    dtype=["float64"],
    args={"blocks": 1, "microbatches": 2},
    candidate_args={"compile_backend": "aot_eager"},
)
def test_the_cnn_compiled_by_aot_eager_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
