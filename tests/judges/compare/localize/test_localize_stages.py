"""Containers that are cut into pipeline stages, and the tensors that stages transfer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.localize import stages
from pytest_trainsafe.trace.reader import Trace
from tests.support.localize.call_traces import Flow, flow, values, write

PP = Point.of(pp=2)

#: Two layers of a decoder, one on each stage.
MODULES = {"": None, "decoder": None, "decoder.0": 0, "decoder.1": 1}

ENTERS, BETWEEN, LEAVES = (values(name, 6, 4) for name in ("enters", "between", "leaves"))

#: Inputs and outputs of the decoder on each stage.
FORWARD = [
    Flow(flow("decoder", "input.0"), ENTERS, stage=0),
    Flow(flow("decoder"), BETWEEN, stage=0),
    Flow(flow("decoder", "input.0"), BETWEEN, stage=1),
    Flow(flow("decoder"), LEAVES, stage=1),
]
BACKWARD = [
    dataclasses.replace(each, id=flow("decoder", each.id.name, "activation_grad"))
    for each in FORWARD
]


def pipeline(path: Path, flows: list[Flow]) -> Trace:
    return write(path, flows, PP, MODULES)


def other(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part + 1


def changed(flows: list[Flow], place: int) -> list[Flow]:
    """The flows, one of which is recorded with other values."""
    return [
        dataclasses.replace(each, change=other) if number == place else each
        for number, each in enumerate(flows)
    ]


def test_a_container_with_different_layers_on_each_stage_is_recognised_as_cut(tmp_path):
    layer = Flow(flow("decoder.0"), BETWEEN, stage=0)
    assert stages.cut_modules(pipeline(tmp_path, [*FORWARD, layer])) == {"decoder"}


def test_a_container_with_the_same_layers_on_each_stage_is_not_recognised_as_cut(tmp_path):
    """Such as a module of which both stages have a copy."""
    modules = {"": None, "decoder": None, "decoder.0": None}
    assert stages.cut_modules(write(tmp_path, FORWARD, PP, modules)) == set()


def test_a_cut_container_keeps_the_first_stages_input_and_the_last_stages_output(tmp_path):
    whole = [
        Flow(flow("decoder", "input.0"), ENTERS),
        Flow(flow("decoder"), LEAVES),
    ]
    candidate = pipeline(tmp_path / "candidate", FORWARD)
    reference = write(tmp_path / "reference", whole)

    candidate, reference = stages.ends({"decoder"}, candidate, reference)

    first, last = flow("decoder", "input.0"), flow("decoder")
    assert [r.coordinates["pp"] for r, _ in candidate.holders(first)] == [0]
    assert [r.coordinates["pp"] for r, _ in candidate.holders(last)] == [1]
    assert {*reference.ids()} == {first, last}


def test_all_chunks_of_a_cut_container_become_one_call(tmp_path):
    """Interleaved stages: stage 0 runs chunks 0 and 2, and stage 1 runs chunks 1 and 3."""
    chunks = [values(f"chunk {number}", 6, 4) for number in range(5)]
    flows = [
        Flow(flow("decoder", name, call=number // 2), chunks[number + after], stage=number % 2)
        for number in range(4)
        for name, after in (("input.0", 0), ("output", 1))
    ]
    whole = [Flow(flow("decoder", "input.0"), chunks[0]), Flow(flow("decoder"), chunks[4])]

    candidate, _ = stages.ends(
        {"decoder"},
        pipeline(tmp_path / "candidate", flows),
        write(tmp_path / "reference", whole),
    )

    for id, expected in ((flow("decoder", "input.0"), chunks[0]), (flow("decoder"), chunks[4])):
        [(rank, event)] = candidate.holders(id)
        assert torch.equal(candidate.load(rank.rank, event), expected)
    assert {id.call for id in candidate.ids()} == {0}
    assert stages.wrong_transfer(pipeline(tmp_path / "all", flows), "decoder", "forward") is None


def test_an_output_of_a_cut_container_with_another_shape_than_the_references_is_dropped(tmp_path):
    """The last stage may return the loss, where the whole model returns logits."""
    logits = [Flow(flow("decoder", "input.0"), ENTERS), Flow(flow("decoder"), values("x", 6, 9))]
    candidate, reference = stages.ends(
        {"decoder"}, pipeline(tmp_path / "c", FORWARD), write(tmp_path / "r", logits)
    )
    assert {*candidate.ids()} == {*reference.ids()} == {flow("decoder", "input.0")}


@pytest.mark.parametrize(("phase", "flows"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_a_tensor_received_unchanged_is_no_wrong_transfer(tmp_path, phase, flows):
    assert stages.wrong_transfer(pipeline(tmp_path, flows), "decoder", phase) is None


@pytest.mark.parametrize(
    ("phase", "flows", "place", "receiver"),
    [("forward", FORWARD, 2, 1), ("backward", BACKWARD, 1, 0)],
    ids=["forward", "backward"],
)
def test_a_wrong_transfer_is_attributed_to_the_receiving_stage(
    tmp_path, phase, flows, place, receiver
):
    trace = pipeline(tmp_path, changed(flows, place))
    assert stages.wrong_transfer(trace, "decoder", phase) == receiver


def test_an_input_of_another_shape_than_the_previous_stages_output_is_no_wrong_transfer(tmp_path):
    """A stage may be given what the previous one does not return, such as a mask."""
    mask = Flow(flow("decoder", "input.1"), values("mask", 3), stage=1)
    trace = pipeline(tmp_path, [*FORWARD, mask])
    assert stages.wrong_transfer(trace, "decoder", "forward") is None


def test_the_stage_of_a_tensor_is_the_first_that_records_it(tmp_path):
    trace = pipeline(tmp_path, [*FORWARD, Flow(flow("decoder.1"), LEAVES, stage=1)])
    assert stages.stage_of(trace, flow("decoder.1")) == 1
    assert stages.stage_of(trace, flow("decoder")) == 0
