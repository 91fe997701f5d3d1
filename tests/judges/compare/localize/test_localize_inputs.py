"""A module's input is compared in each layout that the Point allows, unless one is declared."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.layout import Layout, Partial, Scaled, Shard, ZigZag
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.events import UNKNOWN
from pytest_trainsafe.judges.compare.localize.inputs import Inputs
from tests.support.localize.call_traces import Flow, flow, rung, values

TP, CP, DP = Point.of(tp=2), Point.of(cp=2), Point.of(dp=2)
INPUT = flow("fc1", "input.0")
WHOLE = Flow(INPUT, values("input", 12, 8), source=UNKNOWN)


def inputs(directory: Path, candidate: Flow, point: Point, *more: Flow) -> Inputs:
    """The comparison of one input, with the values of WHOLE, or its own integers, as reference."""
    reference = dataclasses.replace(WHOLE, id=candidate.id)
    if not candidate.tensor.is_floating_point():
        reference = dataclasses.replace(candidate, layout=(), change=WHOLE.change)
    return Inputs(rung(directory, [reference, *more], [candidate, *more], point))


@pytest.mark.parametrize(
    ("point", "layout"),
    [
        (TP, ()),
        (TP, (Shard(0, "tp"),)),
        (TP, (Shard(1, "tp"),)),
        (TP, (Shard(1, "tp", (4, 4)),)),
        (CP, (Shard(0, "cp"),)),
        (CP, (ZigZag(0, "cp"),)),
        (Point.of(cp=2, tp=2), (ZigZag(0, "cp"), Shard(1, "tp"))),
    ],
    ids=str,
)
def test_an_input_agrees_if_an_undeclared_layout_fits_its_values(tmp_path, point, layout):
    candidate = dataclasses.replace(WHOLE, layout=layout)

    found = inputs(tmp_path, candidate, point)

    assert (found.agrees(INPUT), found.differs(INPUT)) == (True, False)


@pytest.mark.parametrize("layout", [(), (Shard(0, "tp"),), (Shard(1, "tp"),)], ids=str)
def test_one_wrong_element_of_one_rank_differs_in_every_layout(tmp_path, layout):
    def wrong(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        part[0, 0] += at["tp"] * 1e-6
        return part

    candidate = dataclasses.replace(WHOLE, layout=layout, change=wrong)

    found = inputs(tmp_path, candidate, TP)

    assert (found.agrees(INPUT), found.differs(INPUT)) == (False, True)


def halved(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """Parts whose sum over the two ranks is `part`."""
    return part * (0.25 if at["tp"] else 0.75)


def test_partial_sums_without_a_declared_partial_layout_differ(tmp_path):
    found = inputs(tmp_path, dataclasses.replace(WHOLE, change=halved), TP)
    assert found.differs(INPUT)


def test_partial_sums_agree_if_the_program_declares_a_partial_layout(tmp_path):
    declared = Flow(flow("fc2"), values("output", 12, 8), (Partial("tp"),))

    found = inputs(tmp_path, dataclasses.replace(WHOLE, change=halved), TP, declared)

    assert found.agrees(INPUT)


def test_a_declared_scale_applies_to_gradients_of_inputs_but_not_to_inputs(tmp_path):
    """As with DDP: gradients are larger than those of the mean until the reduction divides."""
    scaled: Layout = (Scaled("tp"),)
    declared = Flow(flow("fc2", kind="activation_grad"), values("output", 12, 8), scaled)

    def doubled(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * 2

    gradient = dataclasses.replace(
        WHOLE, id=flow("fc1", "input.0", "activation_grad"), change=doubled
    )
    assert inputs(tmp_path / "gradient", gradient, TP, declared).agrees(gradient.id)
    value = dataclasses.replace(WHOLE, change=doubled)
    assert inputs(tmp_path / "value", value, TP).differs(INPUT)


def test_an_input_that_is_a_modules_output_is_compared_only_in_the_declared_layout(tmp_path):
    """Values in the order of another layout are wrong rows for the module that reads them."""

    def exchanged(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part.flip(0)

    declared = dataclasses.replace(WHOLE, layout=(Shard(0, "cp"),), source="output of norm")
    assert inputs(tmp_path / "right", declared, CP).agrees(INPUT)
    zigzag = dataclasses.replace(declared, layout=(ZigZag(0, "cp"),))
    parts = dataclasses.replace(declared, change=exchanged)
    assert inputs(tmp_path / "zigzag", zigzag, CP).agrees(INPUT)
    assert inputs(tmp_path / "wrong", parts, CP).differs(INPUT)
    assert inputs(tmp_path / "named", declared, CP).source(INPUT) == "output of norm"


def test_positions_that_each_rank_counts_from_zero_neither_agree_nor_differ(tmp_path):
    """Positions 0 to 5 on both ranks of cp, where the reference has 0 to 11."""

    def own(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return torch.arange(6)

    positions = Flow(INPUT, torch.arange(12), (Shard(0, "cp"),), UNKNOWN)
    renumbered = dataclasses.replace(positions, change=own)

    right = inputs(tmp_path / "right", positions, CP)
    unknown = inputs(tmp_path / "own", renumbered, CP)

    assert right.agrees(INPUT)
    assert (unknown.agrees(INPUT), unknown.differs(INPUT)) == (False, False)


def test_different_tokens_on_all_ranks_differ(tmp_path):
    def shifted(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part + 1

    tokens = Flow(INPUT, torch.arange(12), (), UNKNOWN, change=shifted)
    assert inputs(tmp_path, tokens, TP).differs(INPUT)


def test_inputs_with_nan_or_without_a_counterpart_neither_agree_nor_differ(tmp_path):
    nan = values("nan", 12, 8)
    nan[0, 0] = torch.nan
    other = flow("fc2", "input.0")
    found = Inputs(
        rung(tmp_path, [dataclasses.replace(WHOLE, tensor=nan)], [WHOLE, Flow(other, nan)], TP)
    )
    for id in (INPUT, other):
        assert (found.agrees(id), found.differs(id)) == (False, False)
    assert found.source(flow("never")) == UNKNOWN
