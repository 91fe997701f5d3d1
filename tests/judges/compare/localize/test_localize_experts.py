"""Undeclared tensors inside of experts are said to need `local`, if nothing outside is wrong.

A function that only exchanges tokens over an axis is not blamed for a fault without this axis.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.core.layout import Layout, Owned
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.fault.clause import at
from pytest_trainsafe.judges.compare.localize.code.experts import undeclared_experts
from pytest_trainsafe.judges.compare.localize.code.sharper import without_idle
from pytest_trainsafe.trace.facts import Applied, CollectiveEvent
from pytest_trainsafe.trace.reader import Trace
from tests.support.localize.blamed_traces import with_facts
from tests.support.localize.call_traces import Flow, flow, values, write

EP = Point.of(dp=2, ep=2)
OWNED = (Owned(("dp",), 2),)
WEIGHT = TensorId(INITIAL, None, "param", "moe.0.experts.1.w1", "weight")
INSIDE = [flow("moe.0.experts.1.w1"), flow("moe.0.experts.1", "output", "activation_grad")]


def traced(folder: Path, layout: Layout = OWNED) -> Trace:
    return write(folder, [Flow(WEIGHT, values("weight", 4, 4), layout)], EP)


def test_tensors_inside_of_experts_alone_are_said_to_need_a_declaration(tmp_path: Path) -> None:
    text = undeclared_experts(traced(tmp_path), INSIDE)
    assert 'declare `modules: {"experts.*": {output: {local: [ep]}}}`' in text


@pytest.mark.parametrize(
    "more",
    [
        [flow("moe.0")],
        [flow("moe.0.router.1")],
        [TensorId(0, None, "main_grad", "moe.0.experts.1.w1", "weight")],
        [None],
    ],
    ids=["layer", "router", "gradient", "no tensor"],
)
def test_nothing_is_proposed_if_anything_else_is_wrong(
    tmp_path: Path, more: list[TensorId | None]
) -> None:
    assert undeclared_experts(traced(tmp_path), [*INSIDE, *more]) == ""


def test_nothing_is_proposed_for_modules_that_every_rank_holds(tmp_path: Path) -> None:
    assert undeclared_experts(traced(tmp_path, ()), INSIDE) == ""
    assert undeclared_experts(traced(tmp_path / "none"), []) == ""


EXCHANGE = Applied("moe.0", "Exchange", "/me/moe.py:10", "/me/moe.py:14")
RUNS = at("its backward runs Exchange.backward", EXCHANGE.backward, kind="backward")
CALL = CollectiveEvent("all_to_all_single", (0, 1), "/me/moe.py:15", step=0, backward=True)
SUM = CollectiveEvent("all_reduce", (0, 2), "/me/moe.py:16", step=0, backward=True)


@pytest.mark.parametrize(
    ("calls", "stays", "kept"),
    [
        ([CALL], ("tp",), False),
        ([CALL], ("ep",), False),
        ([SUM], ("ep",), True),
        ([CALL], (), True),
        ([CALL], ("dp",), True),
        ([CALL, SUM], ("tp",), True),
        ([], ("tp",), True),
    ],
)
def test_a_backward_that_only_communicates_over_an_axis_is_not_blamed_without_this_axis(
    tmp_path: Path, calls: list[msgspec.Struct], stays: tuple[str, ...], kept: bool
) -> None:
    trace = write(tmp_path, [Flow(flow("moe.0"), values("moe", 4, 4))], Point.of(tp=2, dp=2))
    ranks = [
        dataclasses.replace(rank, facts=with_facts(rank, EXCHANGE, *calls)) for rank in trace.ranks
    ]
    other = at("moe.0 is set up", "/me/moe.py:60", kind="set up")
    found = without_idle(trace.with_ranks(ranks), [RUNS, other], stays)
    assert found == ((RUNS, other) if kept else (other,))
