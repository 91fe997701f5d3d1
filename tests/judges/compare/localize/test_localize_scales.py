"""The values that replace a tensor have the scale of the reference's tensor."""

from __future__ import annotations

import dataclasses

import msgspec
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.events import own_rewrite_key, rewrite_key
from pytest_trainsafe.judges.compare.localize.scales import LEAST_SPREAD, scales
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.localize.blamed_traces import with_facts
from tests.support.localize.call_traces import Flow, flow, values, write

OUTPUT, GRADIENT = flow("fc1"), flow("fc1", kind="activation_grad")
PP = Point.of(pp=2)


def rewrites(tmp_path, *reference, candidate=None):
    """The rewrites for a reference, whose candidate records the same if none is given."""
    return scales(
        write(tmp_path / "reference", reference),
        write(tmp_path / "candidate", reference if candidate is None else candidate),
    )


def test_a_rewritten_output_keeps_its_mean_spread_and_bounds(tmp_path):
    tensor = 3.0 + 0.5 * values("output", 40, 8)

    found = rewrites(tmp_path, Flow(OUTPUT, tensor))[rewrite_key(OUTPUT)]

    assert found.shape == (40, 8)
    assert abs(found.mean - tensor.mean()) < 0.01
    assert abs(found.std - tensor.std()) < 0.01
    assert found.low is not None
    assert found.high is not None
    # Powers of two: every dtype represents them.
    assert found.low <= tensor.min()
    assert found.low in {0.5, 1.0, 2.0}
    assert found.high >= tensor.max()
    assert found.high in {4.0, 8.0}


def test_bounds_of_negative_values_are_negative_powers_of_two(tmp_path):
    found = rewrites(tmp_path, Flow(OUTPUT, torch.linspace(-3, -1, 32)))[rewrite_key(OUTPUT)]
    assert (found.low, found.high) == (-4.0, -1.0)


def test_equal_gradients_are_rewritten_with_a_spread_and_without_bounds(tmp_path):
    """Equal gradients, such as those of a mean, would hide a gradient in the wrong place."""
    found = rewrites(tmp_path, Flow(GRADIENT, torch.full((6, 4), 0.5)))[rewrite_key(GRADIENT)]
    assert (found.mean, found.std) == (0.5, 0.5 * LEAST_SPREAD)
    assert found.low is None
    assert found.high is None


def test_outputs_that_differ_only_by_rounding_have_the_same_scale(tmp_path):
    tensor = values("output", 40, 8)
    one = rewrites(tmp_path / "one", Flow(OUTPUT, tensor))
    assert one == rewrites(tmp_path / "two", Flow(OUTPUT, tensor * (1 + 1e-9)))


def test_tensors_that_are_masked_integer_nan_or_empty_are_not_rewritten(tmp_path):
    dropped = values("dropout", 10, 10)
    dropped[:2] = 0  # a fifth
    nan = torch.full((4,), torch.nan)
    flows = [
        Flow(flow("dropout"), dropped),
        Flow(flow("tokens"), torch.arange(4)),
        Flow(flow("nan"), nan),
        Flow(flow("empty"), torch.zeros(0, 4)),
    ]
    assert rewrites(tmp_path, *flows) == {}


def test_a_tensor_that_the_candidate_does_not_record_is_not_rewritten(tmp_path):
    """Such as those of modules that the candidate fuses into one."""
    gate = Flow(flow("gate"), values("gate", 4))
    output = Flow(OUTPUT, values("output", 4))
    loss = Flow(flow("", "loss", "loss"), torch.tensor(1.0))

    found = rewrites(tmp_path, gate, output, loss, candidate=[output, loss])

    assert set(found) == {rewrite_key(OUTPUT)}


def test_an_output_that_every_pipeline_stage_has_under_one_name_is_not_rewritten(tmp_path):
    tensor = values("output", 4)
    flows = [Flow(flow("decoder"), tensor), Flow(flow("decoder.0"), tensor, stage=0)]
    modules = {"": None, "decoder": None, "decoder.0": 0, "decoder.1": 1}

    found = scales(
        write(tmp_path / "reference", [dataclasses.replace(f, stage=None) for f in flows]),
        write(tmp_path / "candidate", flows, PP, modules),
    )

    assert set(found) == {rewrite_key(flow("decoder.0"))}


def test_the_scale_is_taken_from_the_first_step(tmp_path):
    later = msgspec.structs.replace(OUTPUT, step=1)
    found = rewrites(
        tmp_path, Flow(OUTPUT, values("output", 64)), Flow(later, 100 * values("later", 64))
    )
    assert found[rewrite_key(OUTPUT)].std < 2


def test_a_micro_batch_of_another_shape_is_rewritten_in_its_own_shape(tmp_path):
    smaller = msgspec.structs.replace(OUTPUT, microbatch=1)
    alike = msgspec.structs.replace(OUTPUT, microbatch=2)

    found = rewrites(
        tmp_path,
        Flow(OUTPUT, values("output", 64, 4)),
        Flow(smaller, values("smaller", 16, 4)),
        Flow(alike, values("alike", 64, 4)),
    )

    first = found.pop(rewrite_key(OUTPUT))
    assert found == {
        own_rewrite_key(smaller): msgspec.structs.replace(first, shape=(16, 4)),
    }


def test_main_gradients_are_rewritten_on_request_unless_they_are_zero_or_an_engine_takes_the_steps(
    tmp_path,
):
    weight, bias = (TensorId(0, None, "main_grad", "fc1", name) for name in ("weight", "bias"))
    flows = [Flow(weight, values("weight", 8, 4)), Flow(bias, torch.zeros(8))]

    assert rewrites(tmp_path / "not", *flows) == {}
    reference, candidate = (write(tmp_path / name, flows) for name in ("reference", "candidate"))
    found = scales(reference, candidate, main_gradients=True)
    assert set(found) == {rewrite_key(weight)}
    assert found[rewrite_key(weight)].low is None
    ranks = [
        dataclasses.replace(rank, facts=with_facts(rank, NoteEvent("reduces_in", "float32")))
        for rank in candidate.ranks
    ]
    assert scales(reference, candidate.with_ranks(ranks), main_gradients=True) == {}
