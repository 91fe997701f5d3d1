"""Pipelines: division into stages, schedules without deadlock, tensors of a single device."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.pipeline.schedules import (
    OURS,
    actions,
    require_known,
)
from pytest_trainsafe.reference_models.parallel.pipeline.stages import stage_layers
from tests.support.reference_models.errors import ROUNDING, exists_in_a_pipeline, key_bias_drifts


@pytest.mark.parametrize(
    ("run", "reference"),
    [
        ("pipeline", "tied"),
        ("zero pipeline", "tied"),
        ("pipeline tp", "tied"),
        ("pipeline interleaved", "tied"),
        ("pipeline untied", "deep"),
        ("pipeline gpipe", "deep"),
        ("llama pipeline", "deep llama"),
        ("fp8 pipeline", "fp8"),
    ],
)
def test_every_tensor_of_a_pipeline_equals_the_single_device_one(
    parallel, single, run, reference
) -> None:
    errors = parallel[run].errors(single[reference])
    errors = {key: error for key, error in errors.items() if exists_in_a_pipeline(key)}

    assert len(errors) > 400
    assert {k: e for k, e in errors.items() if e > ROUNDING and not key_bias_drifts(k)} == {}
    assert max((e for key, e in errors.items() if key_bias_drifts(key)), default=0.0) < 1e-9


def test_bfloat16_tensors_of_a_pipeline_differ_by_at_most_10_percent(parallel, single) -> None:
    errors = parallel["pipeline bfloat16"].errors(single["tied bfloat16"])
    far = {k: e for k, e in errors.items() if e > 0.1 and exists_in_a_pipeline(k)}

    assert {k: e for k, e in far.items() if not key_bias_drifts(k)} == {}


def test_tied_weights_have_gradients_of_both_uses(single) -> None:
    tied, apart = single["tied"].tensors, single["deep"].tensors

    assert "param output_layer.weight - 0" not in tied
    name = "param_grad embedding.word_embeddings.weight 0 0"
    # The output layer gives every row a gradient, the embedding only the rows of the batch.
    assert not (apart[name].norm(dim=1) > 0).all()
    assert (tied[name].norm(dim=1) > 0).all()


@pytest.mark.parametrize(("layers", "stages"), [(4, 2), (5, 2), (7, 4), (3, 3)])
def test_every_layer_is_in_one_stage_and_stages_differ_by_at_most_one_layer(
    layers: int, stages: int
) -> None:
    cut = [stage_layers(layers, stages, stage, Axes()) for stage in range(stages)]

    assert list(itertools.chain(*cut)) == list(range(layers))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


SHAPES = [
    (schedule, pp, vpp, microbatches)
    for schedule in OURS
    for pp in (1, 2, 3, 4)
    for vpp in (1, 2, 3)
    for microbatches in (1, 2, 3, 4, 6, 8, 12)
    if schedule == "gpipe" or vpp == 1 or microbatches % pp == 0
]


@pytest.mark.parametrize(("schedule", "pp", "vpp", "microbatches"), SHAPES)
def test_no_schedule_deadlocks(schedule: str, pp: int, vpp: int, microbatches: int) -> None:
    """A simulation in which each rank does its next action as soon as its inputs exist."""
    left = [actions(schedule, rank, pp, vpp, microbatches) for rank in range(pp)]
    last, done = pp * vpp - 1, set[Any]()
    while any(left):
        moved = False
        for rank, todo in enumerate(left):
            while todo:
                kind, stage, index = todo[0].kind, todo[0].chunk * pp + rank, todo[0].microbatch
                needs = {("forward", stage - 1, index)} if stage else set()
                if kind == "backward":
                    needs = {("forward", stage, index)}
                    needs |= {("backward", stage + 1, index)} if stage < last else set()
                if not needs <= done:
                    break
                assert (kind, stage, index) not in done
                done.add((kind, stage, index))
                todo.pop(0)
                moved = True
        assert moved, f"ranks wait for each other: {[todo[:1] for todo in left]}"
    assert len(done) == 2 * pp * vpp * microbatches


def test_1f1b_holds_at_most_pp_minus_rank_micro_batches() -> None:
    for rank in range(4):
        waiting = most = 0
        for action in actions("1f1b", rank, 4, 1, 12):
            waiting += 1 if action.kind == "forward" else -1
            most = max(most, waiting)
        assert most == 4 - rank


def test_an_unknown_or_impossible_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="6 micro-batches per rank are not a multiple of pp=4"):
        actions("1f1b", 0, 4, 2, 6)
    with pytest.raises(ValueError, match="no schedule 'zigzag'; choose one of 1f1b, gpipe, torch"):
        require_known("zigzag")
