"""Correct pipelines pass, whatever their schedule, their stages and the axes beside pp."""

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt, llama

#: Arguments of candidate and reference; 5 layers do not divide evenly into stages.
DEEP = {"layers": 5, "microbatches": 4, "clip": 0.5, "hidden": 32, "batch_size": 1}
TIED = {**DEEP, "tied": True}


def pipeline(what, *arguments, slow=True, **axes):
    """A pytest parameter with its own sweep."""
    marks = [pytest.mark.trainsafe(*arguments, **axes), *([pytest.mark.slow] if slow else [])]
    return pytest.param(what, id=what.replace(" ", "-"), marks=marks)


FLOAT64 = {"dtype": ["float64"]}
OWN, TORCHS = ["1f1b", "gpipe"], ["torch-1f1b", "torch-zero-bubble"]


@pytest.mark.parametrize(
    "what",
    [
        pipeline("tied stages", gpt.train, pp=2, tp=2, sp=True, args=TIED, slow=False, **FLOAT64),
        pipeline("tied stages in every dtype", gpt.train, pp=2, tp=2, sp=True, args=TIED),
        pipeline("interleaved", gpt.train, pp=2, vpp=2, args=TIED, slow=False, **FLOAT64),
        pipeline("schedules", gpt.train, pp=2, vpp=[1, 2], schedule=OWN, args=TIED, **FLOAT64),
        pipeline("four stages", gpt.train, pp=4, tied=[False, True], args=DEEP, **FLOAT64),
        pipeline("beside dp and cp", gpt.train, pp=2, dp=2, cp=[1, 2], args=TIED, dtype="bfloat16"),
        pipeline("recomputing", gpt.train, pp=2, vpp=2, recompute=True, args=TIED, **FLOAT64),
        pipeline("llama", llama.train, pp=2, tp=2, sp=True, vpp=[1, 2], args=DEEP, **FLOAT64),
        pipeline(
            "schedules of torch", gpt.train, pp=2, vpp=[1, 2], schedule=TORCHS, args=TIED, **FLOAT64
        ),
    ],
)
def test_a_correct_pipeline_parallel_program_passes(what, candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
