"""An output in another order over cp than declared is blamed on what passes the input so.

The module that makes it may be an embedding of positions: it is right about what it is given.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.layout import Layout, Shard, ZigZag
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.events import UNKNOWN
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM, Fault, Stages, blame
from pytest_trainsafe.judges.compare.localize.description import located
from pytest_trainsafe.judges.compare.localize.scales import scales
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.program import Program
from tests.support.localize.blamed_traces import text_of
from tests.support.localize.call_traces import Flow, flow, rung, values

CONTIGUOUS, ZIGZAG = (Shard(0, "cp"),), (ZigZag(0, "cp"),)
NUMBERS = torch.arange(8)
TABLE = values("table", 8, 4)
CALLERS = {"pos": "model", "norm": "model"}


def traced(folder: Path, given: Layout, passed: Layout, made: Layout) -> RungTraces:
    """A model embeds positions: the order of its input, of that of `pos`, and of its output."""

    def embedded(at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        right = made == ZIGZAG or len(part) == len(TABLE)
        return part if right else TABLE.chunk(2)[at["cp"]].clone()

    def flows(outer: Layout, inner: Layout, declared: Layout) -> list[Flow]:
        return [
            Flow(flow("model", "input.0"), NUMBERS, outer, UNKNOWN),
            Flow(flow("pos", "input.0"), NUMBERS, inner, UNKNOWN),
            Flow(flow("pos"), TABLE, declared, change=embedded),
            Flow(flow("norm"), values("norm", 8, 4), ZIGZAG),
        ]

    reference, candidate = flows((), (), ()), flows(given, passed, ZIGZAG)
    return rung(folder, reference, candidate, Point.of(cp=2), CALLERS)


def faults(made: RungTraces) -> list[Fault]:
    rewrites = scales(made.reference, made.candidate)
    return blame(made, compare(made), rewrites, Stages(made.candidate))


def test_data_in_another_order_than_the_layouts_declare_is_blamed_and_not_the_module(
    tmp_path: Path,
) -> None:
    made = traced(tmp_path, CONTIGUOUS, CONTIGUOUS, CONTIGUOUS)
    found = faults(made)
    assert [(fault.phase, fault.target) for fault in found] == [("data", PROGRAM)]
    program = Program(path="package.fit:train")
    text = text_of(located(found, compare(made), made, program, ""))
    assert (
        "the data that fit.train passes to its model is wrong: it is divided over cp in "
        "contiguous order, and the layout of pos declares zigzag order; the model is not at fault"
    ) in text
    assert "given equal inputs" not in text


def test_a_caller_that_changes_the_order_is_blamed_for_it(tmp_path: Path) -> None:
    found = faults(traced(tmp_path, ZIGZAG, CONTIGUOUS, CONTIGUOUS))
    assert [(fault.phase, fault.target, fault.between) for fault in found] == [
        ("forward", "model", True)
    ]


@pytest.mark.parametrize("given", [ZIGZAG, ()], ids=["zigzag", "whole"])
def test_a_module_that_is_given_the_declared_order_is_blamed_itself(
    tmp_path: Path, given: Layout
) -> None:
    found = faults(traced(tmp_path, given, given, CONTIGUOUS))
    assert [(fault.phase, fault.target) for fault in found] == [("forward", "pos")]


def test_an_input_in_another_order_is_no_fault_while_the_output_agrees(tmp_path: Path) -> None:
    """A module may put its input into order itself."""
    assert faults(traced(tmp_path, CONTIGUOUS, CONTIGUOUS, ZIGZAG)) == []
