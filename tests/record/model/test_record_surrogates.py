"""A text with a lone surrogate, which UTF-8 cannot encode, is refused with what to change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_trainsafe import consistent_tensor, observe
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.learn.events.file import TableWriter, read_table
from pytest_trainsafe.judges.learn.events.table import replay
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.model.parts import named_modules, named_parameters, parts_of
from pytest_trainsafe.trace.writer import RankWriter, TraceWriteError

LONE = "w\ud800"


def model(name: str) -> nn.Module:
    made = nn.Module()
    made.add_module(name, nn.Linear(2, 2))
    return made


def test_the_name_of_a_module_is_refused() -> None:
    for model_or_parts in (model(LONE), {LONE: nn.Linear(2, 2)}):
        parts = parts_of(model_or_parts)
        with pytest.raises(ProgramError, match=r"named 'w\\ud800.*give it another name"):
            list(named_parameters(parts))
        with pytest.raises(ProgramError, match=r"named 'w\\ud800.*give it another name"):
            named_modules(parts)


def test_any_other_name_of_a_module_is_kept() -> None:
    assert [name for name, _ in named_parameters(parts_of(model("größe名 🙂")))] == [
        "größe名 🙂.weight",
        "größe名 🙂.bias",
    ]


def test_the_key_of_a_consistent_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"the key 'w\\ud800' .* pass another name"):
        consistent_tensor(LONE, (2,))
    assert consistent_tensor("w\u00e9", (2,)).shape == (2,)


def test_a_tensor_that_a_trace_cannot_hold_is_refused(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0)
    writer.add_tensor(TensorId(0, None, "param", LONE, "weight"), torch.ones(2))

    with pytest.raises(TraceWriteError, match=r"cannot hold the text .*w\\ud800"):
        writer.flush()


def test_texts_that_calls_pass_are_recorded_with_the_surrogate_escaped(tmp_path: Path) -> None:
    with observe() as observation:
        nn.Module().load_state_dict({LONE: torch.ones(1), LONE * 500: torch.ones(2)}, strict=False)
    writer = TableWriter(tmp_path / "table", 0)
    replay(observation.table, writer)
    writer.flush()

    text = "".join(read_table(tmp_path / "table", 0).texts)
    assert r"w\ud800" in text
