"""Which module, or code between modules, is blamed for differences in a rewritten Run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.events import UNKNOWN
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM, Fault, Stages, blame
from pytest_trainsafe.judges.compare.localize.description import located
from pytest_trainsafe.judges.compare.localize.scales import scales
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import Changed, Site
from tests.support.localize.blamed_traces import noting
from tests.support.localize.call_traces import Flow, flow, rung, values

TP = Point.of(tp=2)

#: A block calls a norm and two linear layers; code of the block is between the layers.
CALLERS = {"norm": "block", "fc1": "block", "fc2": "block"}
FROM_NORM, BETWEEN = "output of norm", UNKNOWN


def gradient(module: str, name: str = "output") -> TensorId:
    return flow(module, name, "activation_grad")


FORWARD = [
    Flow(flow("block", "input.0"), values("tokens", 6, 4), source=UNKNOWN),
    Flow(flow("norm", "input.0"), values("enters norm", 6, 4), source=UNKNOWN),
    Flow(flow("norm"), values("norm", 6, 4)),
    Flow(flow("fc1", "input.0"), values("norm", 6, 4), source=FROM_NORM),
    Flow(flow("fc1"), values("fc1", 6, 8), (Shard(1, "tp"),)),
    Flow(flow("fc2", "input.0"), values("activated", 6, 8), (Shard(1, "tp"),), BETWEEN),
    Flow(flow("fc2"), values("fc2", 6, 4)),
    Flow(flow("block"), values("block", 6, 4)),
]
BACKWARD = [
    Flow(gradient("block"), values("grad block", 6, 4)),
    Flow(gradient("fc2"), values("grad fc2", 6, 4)),
    Flow(gradient("fc2", "input.0"), values("grad act", 6, 8), (Shard(1, "tp"),), BETWEEN),
    Flow(gradient("fc1"), values("grad fc1", 6, 8), (Shard(1, "tp"),)),
    Flow(gradient("fc1", "input.0"), values("grad norm", 6, 4), source=FROM_NORM),
    Flow(gradient("norm"), values("grad norm", 6, 4)),
]
WEIGHT = Flow(flow("fc1", "weight", "param_grad"), values("grad weight", 8, 4), (Shard(0, "tp"),))
ALL = [*FORWARD, *BACKWARD, WEIGHT]


def wrong(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part + at["tp"]


def added(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part + 1


def blamed(made: RungTraces) -> list[Fault]:
    """The faults of a Run whose outputs were all rewritten."""
    rewrites = scales(made.reference, made.candidate)
    return blame(made, compare(made), rewrites, Stages(made.candidate))


def faults(
    directory: Path, *ids: TensorId, lacking: str | None = None, flows: list[Flow] = ALL
) -> list[Fault]:
    """The faults if rank 1 records other values for `ids`, and no rank calls `lacking`."""
    candidate = [
        dataclasses.replace(each, change=wrong) if each.id in ids else each
        for each in flows
        if each.id.module != lacking
    ]
    assert {*ids} <= {each.id for each in candidate}
    return blamed(rung(directory, flows, candidate, TP, callers=CALLERS))


def test_a_module_is_blamed_if_its_inputs_agree_and_its_output_does_not(tmp_path):
    assert faults(tmp_path, flow("fc1")) == [Fault("forward", "fc1")]


def test_the_caller_is_blamed_if_an_input_that_it_computes_is_wrong(tmp_path):
    found = faults(tmp_path, flow("fc2", "input.0"), flow("fc2"))
    assert found == [Fault("forward", "block", between=True)]


def test_a_module_with_wrong_inputs_from_a_faulty_module_is_not_blamed(tmp_path):
    found = faults(tmp_path, flow("norm"), flow("fc1", "input.0"), flow("fc1"))
    assert found == [Fault("forward", "norm")]


def test_two_independent_faults_are_both_named_in_dataflow_order(tmp_path):
    found = faults(tmp_path, flow("fc1"), flow("norm"))
    assert found == [Fault("forward", "norm"), Fault("forward", "fc1")]


def test_a_blamed_module_without_recorded_inputs_is_marked_as_not_compared(tmp_path):
    flows = [each for each in ALL if each.id != flow("fc1", "input.0")]
    found = faults(tmp_path, flow("fc1"), flows=flows)
    assert found == [Fault("forward", "fc1", not_compared=True)]


def test_different_input_tokens_of_the_model_are_a_data_fault(tmp_path):
    tokens = Flow(flow("block", "input.0"), torch.arange(6), source=UNKNOWN)
    others = dataclasses.replace(tokens, tensor=torch.arange(6) + 1)
    read = [
        dataclasses.replace(each, change=wrong) if each.id.module in ("norm", "block") else each
        for each in FORWARD[1:]
    ]

    found = blamed(rung(tmp_path, [tokens, *FORWARD[1:]], [others, *read], TP, callers=CALLERS))

    assert found == [Fault("data", PROGRAM)]


def test_a_module_that_is_never_called_is_blamed_as_uncalled(tmp_path):
    assert faults(tmp_path, lacking="fc2") == [Fault("forward", "fc2", uncalled="never")]


def test_a_module_with_fewer_calls_than_in_the_reference_is_blamed_as_called_less(tmp_path):
    again = [
        dataclasses.replace(each, id=flow(each.id.module, each.id.name, call=1))
        for each in FORWARD
        if each.id.module == "fc1"
    ]
    candidate, reference = ALL, [*FORWARD, *again, *BACKWARD, WEIGHT]

    found = blamed(rung(tmp_path, reference, candidate, TP, callers=CALLERS))

    assert found == [Fault("forward", "fc1", uncalled="less")]


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        ([gradient("fc2", "input.0"), gradient("fc1")], Fault("backward", "fc2")),
        ([gradient("fc1")], Fault("backward", "block", between=True)),
    ],
    ids=["within a module", "between modules"],
)
def test_a_wrong_output_gradient_is_blamed_on_the_consumer_of_the_output(tmp_path, ids, fault):
    assert faults(tmp_path, *ids) == [fault]


def test_a_wrong_output_gradient_of_the_outermost_module_is_blamed_on_the_program(tmp_path):
    assert faults(tmp_path, gradient("block")) == [Fault("backward", PROGRAM)]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([gradient("fc2")], [Fault("backward", PROGRAM, after="fc2")]),
        ([gradient("fc1")], [Fault("backward", "block", between=True)]),
        ([], []),
    ],
    ids=["of the last", "of another", "clean"],
)
def test_a_wrong_gradient_of_the_last_recorded_output_may_come_from_the_loss(tmp_path, ids, found):
    """As where a model enters its micro-batch itself, so that only what it calls is recorded."""
    recorded = [each for each in ALL if each.id.module != "block"]
    assert faults(tmp_path, *ids, flows=recorded) == found


def test_a_weight_gradient_that_alone_is_wrong_is_blamed_on_its_parameter(tmp_path):
    assert faults(tmp_path, WEIGHT.id) == [Fault("weights", "fc1.weight")]


def test_a_wrong_weight_gradient_of_a_faulty_module_is_no_second_fault(tmp_path):
    found = faults(tmp_path, flow("fc1"), WEIGHT.id)
    assert found == [Fault("forward", "fc1")]


def test_a_wrong_loss_of_correct_outputs_is_blamed_on_the_program(tmp_path):
    loss = Flow(flow("", "loss", "loss"), torch.tensor(2.0, dtype=torch.float64))
    assert faults(tmp_path, loss.id, flows=[*ALL, loss]) == [Fault("loss", PROGRAM)]


TABLE = TensorId(0, None, "buffer", "norm", "table")
FIRST = Flow(msgspec.structs.replace(TABLE, step=INITIAL), values("table", 4))


def test_a_wrong_buffer_is_blamed_on_its_module_even_if_the_outputs_are_correct(tmp_path):
    flows = [FIRST, *ALL, Flow(TABLE, values("table", 4))]
    assert faults(tmp_path, TABLE, flows=flows) == [Fault("buffer", "norm")]


@pytest.mark.parametrize(
    ("microbatch", "changed", "fault"),
    [
        (None, "norm.table", Fault("unheld", "norm.table")),
        (None, "norm.other", Fault("buffer", "norm")),
        (0, "norm.table", Fault("buffer", "norm")),
    ],
    ids=["after the forwards", "another buffer", "in a forward"],
)
def test_a_wrong_buffer_that_a_known_line_changes_is_no_fault_of_its_modules_forward(
    tmp_path, microbatch, changed, fault
):
    table = msgspec.structs.replace(TABLE, microbatch=microbatch)
    good = [FIRST, *ALL, Flow(table, values("table", 4))]
    bad = [dataclasses.replace(each, change=added) if each.id == table else each for each in good]
    line = Changed(0, "/me/fit.py:5", "add_", "/me/fit.py:41", True, (), (changed,))
    made = noting(rung(tmp_path, good, bad, Point.of(), callers=CALLERS), line)
    assert blamed(made) == [fault]
    found = located([fault], compare(made), made, Program("m:train"), "")
    if fault.phase == "unheld":
        assert found.rows[0][1] == (
            "the forward of every module agrees; the values of norm.table are wrong: the program's "
            "own code changes it"
        )
        assert (found.source, found.what) == (
            "/me/fit.py:5",
            "changes buffers, by add_; called at /me/fit.py:41",
        )
    else:
        assert "the buffers are wrong after the forward of norm" in found.rows[0][1]


MODEL = Site("model", "/me/fit.py:50")
COPY = Changed(0, "/me/fit.py:50", "copy_", parameters=("norm.table",))
LERP = Changed(0, "/me/fit.py:63", "lerp_", parameters=("norm.table",))


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        ([COPY, LERP], [COPY, LERP], "63 changes buffers, by lerp_, as in the reference"),
        ([LERP, COPY], [LERP, COPY], "63 changes buffers, by lerp_, as in the reference"),
        ([COPY], [COPY], "50 changes buffers, by copy_, as in the reference"),
        ([COPY, LERP], [LERP], "50 changes buffers, by copy_"),
    ],
    ids=["after the model", "before the model", "by the model alone", "not in the reference"],
)
def test_the_line_that_makes_a_buffer_is_named_before_the_call_of_the_model_that_sends_it(
    tmp_path, ours, theirs, named
):
    good = [FIRST, *ALL, Flow(TABLE, values("table", 4))]
    bad = [dataclasses.replace(each, change=added) if each.id == TABLE else each for each in good]
    made = noting(rung(tmp_path, good, bad, Point.of(), callers=CALLERS), MODEL, *ours)
    swapped = noting(dataclasses.replace(made, candidate=made.reference), *theirs)
    made = dataclasses.replace(made, reference=swapped.candidate)
    found = located([Fault("unheld", "norm.table")], compare(made), made, Program("m:train"), "")
    assert f"{found.source} {found.what}" == f"/me/fit.py:{named}"
