"""A wrong input of the model is named as another micro-batch's only if it is that, up to noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import MICROBATCHES, Record, draw, training, write

SHAPE = (12, 8)

#: The micro-batch whose input is wrong.
WRONG = 2

#: Given the number of a micro-batch: its input.
Batch = Callable[[int], torch.Tensor]


def floats(index: int) -> torch.Tensor:
    return draw(f"input {index}", SHAPE)


def tokens(index: int) -> torch.Tensor:
    return (100 * floats(index)).long()


def with_inputs(dtype: str, epsilon: float, batch: Batch) -> list[Record]:
    """One step's logical tensors, with an input of every micro-batch before its forward.

    The relative noise of inputs is `epsilon`, as the noise of the other tensors.
    """
    found = []
    for record in training(dtype, epsilon, seed=int(epsilon > 0), steps=1):
        id = record.id
        if id.kind == "activation" and id.module == "norm" and id.microbatch is not None:
            value = batch(id.microbatch)
            if value.is_floating_point():
                value = value * (1 + epsilon * draw("noise of the input", SHAPE).clamp(-1, 1))
            found.append(Record(TensorId(0, id.microbatch, "input", "", "input.0"), value))
        found.append(record)
    return found


def wrong_forward(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    is_output = record.id.kind == "activation" and record.id.microbatch == WRONG
    return part * 1.5 + 1 if is_output else part


def rung(
    folder: Path, given: torch.Tensor, batch: Batch, dtype: str, shadow: Batch | None = None
) -> RungTraces:
    """A candidate whose input of one micro-batch is `given`, and whose forward of it is wrong.

    `shadow` has the inputs of the float64 run that measures rounding, None for no such run.
    """

    def trace(name: str, dtype: str, epsilon: float, batch: Batch) -> Trace:
        return write(folder / name, with_inputs(dtype, epsilon, batch), Point.of(), dtype)

    records = with_inputs(dtype, 0.0, lambda index: given if index == WRONG else batch(index))
    candidate = write(folder / "candidate", records, Point.of(dp=2), dtype, wrong_forward)
    return RungTraces(
        dtype,
        candidate,
        trace("reference", dtype, 0.0, batch),
        trace("perturbed", dtype, rung_named(dtype).epsilon, batch),
        trace("shadow", "float64", 0.0, shadow) if shadow is not None else None,
    )


def first(rung: RungTraces) -> Finding:
    return next(f for f in compare(rung).findings if f.verdict == "fail")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("batch", [floats, tokens])
def test_data_that_no_micro_batch_has_equal_none(tmp_path: Path, batch: Batch, dtype: str) -> None:
    found = first(rung(tmp_path, batch(100), batch, dtype))
    assert found.check == "data"
    assert found.pattern is not None
    assert "values differ from the reference's input" in found.pattern.text


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("batch", [floats, tokens])
@pytest.mark.parametrize("number", [0, 3])
def test_the_data_of_another_micro_batch_are_named(
    tmp_path: Path, number: int, batch: Batch, dtype: str
) -> None:
    found = first(rung(tmp_path, batch(number), batch, dtype))
    assert found.check == "data"
    assert found.pattern is not None
    assert found.pattern.text == f"it equals the reference's input of micro-batch {number}"


def test_right_data_are_not_blamed(tmp_path: Path) -> None:
    found = first(rung(tmp_path, floats(WRONG), floats, "float32"))
    assert found.where is not None
    assert found.where.kind == "activation"


def test_noise_as_large_as_the_data_shows_no_equality(tmp_path: Path) -> None:
    """The float64 run has drawn other numbers, so every micro-batch is within the noise."""
    made = rung(tmp_path, floats(100), floats, "float32", lambda index: floats(index + 50))
    assert made.shadow is not None
    named = [
        f.pattern.text
        for f in compare(made).findings
        if f.pattern is not None and "equals the reference's input of" in f.pattern.text
    ]
    assert named == []


def test_another_argument_allows_its_own_noise_only(tmp_path: Path) -> None:
    """A second argument of the same shape does not make a wrong first one unclear."""
    made = rung(tmp_path, floats(100), floats, "float32")
    made = dataclasses.replace(
        made,
        candidate=_with_second(tmp_path / "a", floats(100), "float32", 0.0, Point.of(dp=2)),
        reference=_with_second(tmp_path / "b", floats(WRONG), "float32", 0.0, Point.of()),
        perturbed=_with_second(
            tmp_path / "c", floats(WRONG), "float32", rung_named("float32").epsilon, Point.of()
        ),
    )
    found = first(made)
    assert (found.check, found.pattern and found.pattern.name) == ("data", "data")


def _with_second(
    path: Path, given: torch.Tensor, dtype: str, epsilon: float, point: Point
) -> Trace:
    """A trace with a second input of every micro-batch, which no rank gets wrong."""
    records = []
    for record in with_inputs(dtype, epsilon, lambda i: given if i == WRONG else floats(i)):
        records.append(record)
        if record.id.kind == "input":
            assert record.id.microbatch is not None
            second = TensorId(0, record.id.microbatch, "input", "", "input.1")
            records.append(Record(second, draw(f"second {record.id.microbatch}", SHAPE)))
    edit = wrong_forward if point.world_size > 1 else (lambda record, at, part: part)
    return write(path, records, point, dtype, edit)


def test_every_micro_batch_has_an_input(tmp_path: Path) -> None:
    """The traces here hold what the other tests compare."""
    trace = rung(tmp_path, floats(WRONG), floats, "float32").reference
    assert sum(id.kind == "input" for id in trace.ids()) == MICROBATCHES
