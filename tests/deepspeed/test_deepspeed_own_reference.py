"""DeepSpeed may be its own reference, which optimizers need whose update it makes itself."""

from __future__ import annotations

from typing import Any

import deepspeed_programs
import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.fixtures.deepspeed import deepspeed_program
from pytest_trainsafe.fixtures.deepspeed.config import DeepSpeedConfig
from pytest_trainsafe.fixtures.deepspeed.reference import train_plainly
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import Cell, cells

MUON = {"optimizer": {"type": "Muon", "params": {"lr": 0.01}}}

OWN = {"framework": "deepspeed", "config": {"zero_optimization": {"stage": 1}}}


def build() -> Any:
    raise AssertionError("no model is built to collect a test")


def swept(**axes: Any) -> list[Cell]:
    program = deepspeed_program(MUON)(build)
    return cells(read_marker([program], axes), Settings(), lambda *_: None)


def test_an_optimizer_of_deepspeed_alone_asks_for_deepspeed_as_reference() -> None:
    nothing: Any = None
    with pytest.raises(ProgramError, match=r"'Muon' has no counterpart .* 'deepspeed'"):
        train_plainly(
            nothing, nothing, nothing, DeepSpeedConfig(MUON), None, None, 1, 1, True, resized=""
        )


def test_with_deepspeed_as_reference_it_is_taken() -> None:
    (cell,) = swept(zero=[2], reference=OWN)

    assert cell.invalid is None
    assert cell.case.arguments["framework"] == "deepspeed"


@pytest.mark.trainsafe(deepspeed_programs.odd_parameters, zero=3, reference=OWN)
def test_stage_3_trains_like_stage_1(candidate_trace, reference_trace):
    pytest.importorskip("deepspeed")
    assert_trainsafe(candidate_trace, reference_trace)
    states = reference_trace.at("float32").ranks[0].tensors.values()
    assert any(event.id.kind == "optimizer_state" and event.layout for event in states)
