"""The first difference between two Runs' traces, and the list of nondeterministic operators."""

from __future__ import annotations

import re

import pytest
import torch

from pytest_trainsafe.core.finding import StepSubject
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.replay.determinism.divergence import first_divergence
from pytest_trainsafe.judges.replay.determinism.nondeterministic import _LISTED, listed
from pytest_trainsafe.judges.replay.determinism.operator_look import first_operator
from pytest_trainsafe.judges.replay.determinism.variation import variables
from pytest_trainsafe.trace.operators import OperatorEvent, OutsideRead
from pytest_trainsafe.trace.schema import StepEvent
from tests.support.replay.determinism_traces import Rank, loss, operator, written

ONE, TWO = torch.ones(3), torch.full((3,), 2.0)
RANK: Rank = [(loss(0), ONE), (loss(0, 1), ONE), (loss(1), ONE)]


def test_equal_traces_have_no_difference(tmp_path):
    first, second = (written(tmp_path / name, RANK, RANK) for name in "ab")

    assert first_divergence(first, second) is None


def test_a_difference_on_one_rank_is_reported_with_rank_tensor_and_extent(tmp_path):
    other = [RANK[0], (loss(0, 1), TWO), (loss(1), TWO)]
    found = first_divergence(
        written(tmp_path / "a", RANK, RANK), written(tmp_path / "b", RANK, other)
    )

    assert found is not None
    assert (found.how, found.rank, found.where) == ("values", 1, loss(0, 1))
    assert (found.differing, found.total, found.greatest) == (2, 6, 1.0)


def test_zero_and_negative_zero_are_a_difference(tmp_path):
    zero, negative = torch.zeros(3), -torch.zeros(3)
    found = first_divergence(
        written(tmp_path / "a", [(loss(0), zero)]), written(tmp_path / "b", [(loss(0), negative)])
    )

    assert found is not None
    assert found.greatest == 0.0


@pytest.mark.parametrize(
    ("other", "how", "where"),
    [
        ([(loss(0), ONE), (loss(1), ONE)], "missing", loss(0, 1)),
        ([(loss(0), ONE), (loss(0, 1), ONE[:2]), (loss(1), ONE)], "shape", loss(0, 1)),
        ([*RANK, (loss(2), ONE)], "added", loss(2)),
    ],
)
def test_a_tensor_that_is_missing_added_or_of_another_shape_is_a_difference(
    tmp_path, other, how, where
):
    found = first_divergence(written(tmp_path / "a", RANK), written(tmp_path / "b", other))

    assert found is not None
    assert (found.how, found.where) == (how, where)


def test_equal_tensors_recorded_in_another_order_are_a_difference(tmp_path):
    first, second = written(tmp_path / "a", RANK), written(tmp_path / "b", RANK[::-1])
    found = first_divergence(first, second)

    assert found is not None
    assert (found.how, found.where) == ("order", loss(0))


def test_optimizer_states_recorded_in_another_order_are_no_difference(tmp_path):
    states = [
        (TensorId(1, None, "optimizer_state", "", f"weight.{name}"), ONE)
        for name in ("exp_avg", "exp_avg_sq")
    ]
    first, second = (
        written(tmp_path / name, [*RANK, *order])
        for name, order in (("a", states), ("b", states[::-1]))
    )

    assert first_divergence(first, second) is None


def test_an_optimizer_that_steps_in_only_one_run_is_a_difference(tmp_path):
    stepped = [
        StepEvent(0, 1, "", "", optimizer_stepped=each, seconds=0.1) for each in (True, False)
    ]
    found = first_divergence(
        written(tmp_path / "a", [*RANK, stepped[0]]), written(tmp_path / "b", [*RANK, stepped[1]])
    )

    assert found is not None
    assert (found.how, found.subject) == ("steps", StepSubject(0))


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (operator(1), operator(2), "result"),
        (operator(1, 1), operator(2, 2), "input"),
        (operator(1, arguments="1.5"), operator(2, arguments="2.5"), "argument"),
        (operator(), operator(name="aten.add.Tensor"), "call"),
        (operator(microbatch=0), operator(microbatch=1), "microbatch"),
        # What is in memory that an operator overwrites, or in a storage, is not its input's value.
        (
            operator(1, 1, "aten.uniform_.default"),
            operator(2, 2, "aten.uniform_.default"),
            "result",
        ),
        (
            operator(1, 1, "aten.set_.source_Storage"),
            operator(2, 1, "aten.set_.source_Storage"),
            "input",
        ),
    ],
)
def test_the_first_differing_operator_is_reported_with_the_part_that_differs(
    tmp_path, one, other, differs
):
    same = operator(inputs=7)
    first, second = (written(tmp_path / n, [same, e]) for n, e in (("a", one), ("b", other)))
    found = first_operator(first, second, 0)

    assert found is not None
    assert (found.differs, found.number) == (differs, 1)
    assert one.name in found.text


@pytest.mark.parametrize(
    "passive", [{"name": "aten.empty.memory_format"}, {"name": "aten.view.default", "view": True}]
)
def test_different_outputs_of_an_allocation_or_a_view_are_no_difference(tmp_path, passive):
    events = [operator(outputs, **passive) for outputs in (1, 2)]
    one, other = (written(tmp_path / n, [e]) for n, e in zip("ab", events, strict=True))

    assert first_operator(one, other, 0) is None


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (OperatorEvent("aten.mul.Tensor", 0, "no hash"), "an operator has a malformed hash"),
        (OperatorEvent("aten.mul.Tensor", 0, at="nowhere"), "has a malformed file and line"),
        (OutsideRead("time.time", "nowhere", 0), "has a malformed file and line"),
    ],
)
def test_a_malformed_event_is_refused(tmp_path, event, fault):
    with pytest.raises(TraceError, match=fault):
        written(tmp_path, [event])


def test_every_listed_operator_is_named_in_torchs_documentation_of_determinism():
    documented = re.sub(r"\s+", " ", str(torch.use_deterministic_algorithms.__doc__))

    for operators, (name, why) in _LISTED.items():
        assert name in documented, operators
        assert why


def test_only_aten_operators_are_listed_whatever_their_overload_or_in_place_form():
    assert listed("aten.index_add_.default") == listed("aten.index_add.out")
    assert listed("aten.upsample_bilinear2d_backward.default") is not None
    assert listed("aten.mul.Tensor") is None
    assert listed("custom.index_add.default") is None


def test_the_users_allocator_settings_are_kept_when_memory_patterns_are_varied():
    given = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}
    settings = dict(variables(3, 1, given))

    assert settings["PYTHONHASHSEED"] == "3"
    assert settings["GLIBC_TUNABLES"].startswith("glibc.malloc.arena_max=1:glibc.malloc.perturb=")
    assert variables(1, 1, {}) != variables(1, 2, {})
