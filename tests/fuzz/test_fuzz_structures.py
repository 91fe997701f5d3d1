"""Random structures of the reference models' blocks train in parallel as on one device."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe import Point, assert_trainsafe, trainsafe_fuzz
from pytest_trainsafe.reference_models import mixed
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.sweep.validity import invalid

STRUCTURES: dict[str, Any] = {
    "layers": [1, 2],
    "kv_heads": [1, 2, 4],
    "norm": ["rms", "layer"],
    "gated": [True, False],
    "bias": ...,
    "tied": ...,
    "mixtures": ["none", "all", "second"],
    "frozen": ["nothing", "embedding", "norms", "attention"],
    "unused": ...,
}


@pytest.mark.slow
@trainsafe_fuzz(
    mixed.train, max_examples=12, dp=..., tp=..., cp=..., sp=..., dtype=["float64"], **STRUCTURES
)
def test_a_random_structure_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    mixed.train,
    tp=[2],
    sp=[True],
    dtype=["float64"],
    args={
        "layers": 2,
        "norm": "layer",
        "gated": False,
        "tied": True,
        "mixtures": "second",
        "frozen": "attention",
        "unused": True,
        "microbatches": 1,
    },
)
def test_all_blocks_together_train_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.parametrize(
    ("point", "arguments", "words"),
    [
        (Point.of(pp=2), {}, "this program has no pp; its axes are dp, tp, sp, cp and ep"),
        (Point.of(zero=1, dp=2), {}, "this program has no zero"),
        (Point.of(dp=2, ep=2), {}, "but this model has no experts"),
        (
            Point.of(dp=2, ep=2),
            {"mixtures": "second", "layers": 1},
            "but this model has no experts",
        ),
        (Point.of(tp=2), {"mixtures": "all", "bias": True}, "use bias=False"),
        (Point.of(), {"norm": "batch"}, "norm='batch' is unknown; choose one of rms, layer"),
        (Point.of(), {"mixtures": "half"}, "mixtures='half' is unknown; choose one of none, all"),
    ],
)
def test_an_unsupported_structure_is_refused(point, arguments, words):
    program = resolve(mixed.train)

    why = invalid(point, program.complete(arguments), program.rules, 8)

    assert why is not None
    assert words in why
