"""A Run in another dtype measures rounding only if its model got the same data."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.judges.compare.same_computation import flaw_of, other_inputs
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import InputEvent, StepEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest
from tests.support.compare.traces import training

MEASURES = ((2.0, 0.5), None)


def trace(folder: Path, dtype: str, event: InputEvent, steps: tuple[bool, ...] = (True,)) -> Trace:
    """A program of whole steps, whose model gets a tensor of numbers and one of labels."""
    write_manifest(folder, manifest_of(RunSpec(program="m.train", axes=(), dtype=dtype), "cpu"))
    writer = RankWriter(folder, 0)
    for record in training(dtype)[:1]:
        writer.add_tensor(record.id, record.tensor)
    writer.add(event)
    for number, stepped in enumerate(steps):
        writer.add(StepEvent(number, 0, "", "", stepped, 0.0))
    writer.close()
    return Trace.open(folder)


def flaws(folder: Path, other: InputEvent, dtype: str = "float64") -> list[str]:
    ours = trace(folder / "ours", "float32", InputEvent(0, 0, ("ours", "labels"), MEASURES))
    return [each.what for each in other_inputs(ours, trace(folder / "other", dtype, other))]


@pytest.mark.parametrize("apart", [0.0, 1e-7, -1e-6])
def test_data_that_differ_by_a_cast_are_the_same(tmp_path: Path, apart: float) -> None:
    other = InputEvent(0, 0, ("other", "labels"), ((2.0 + apart, 0.5 - apart), None))

    assert flaws(tmp_path, other) == []


@pytest.mark.parametrize(
    "measures",
    [((2.001, 0.5), None), ((2.0, 0.499), None), (None, None)],
    ids=["another norm", "another projection", "infinite"],
)
def test_other_data_are_a_flaw(tmp_path: Path, measures: tuple[object, ...]) -> None:
    other = InputEvent(0, 0, ("other", "labels"), measures)  # type: ignore[arg-type]

    assert flaws(tmp_path, other) == ["gets different data in step 0"]


def test_other_labels_are_a_flaw(tmp_path: Path) -> None:
    other = InputEvent(0, 0, ("ours", "other labels"), MEASURES)

    assert flaws(tmp_path, other) == ["gets different data in step 0"]


def test_another_number_of_tensors_is_a_flaw(tmp_path: Path) -> None:
    other = InputEvent(0, 0, ("ours",), MEASURES[:1])

    assert flaws(tmp_path, other) == ["gets different data in step 0"]


@pytest.mark.parametrize(("dtype", "found"), [("float32", 1), ("float64", 0)])
def test_without_measures_only_runs_of_one_dtype_are_compared(
    tmp_path: Path, dtype: str, found: int
) -> None:
    assert len(flaws(tmp_path, InputEvent(0, 0, ("other", "labels")), dtype)) == found


@pytest.mark.parametrize(
    ("ours", "its", "what"),
    [
        ((False, True), (True, True), "makes the optimizer's step of step 0"),
        ((True, True), (True, False), "leaves out the optimizer's step of step 1"),
        ((False, True), (False, True), None),
    ],
)
def test_another_step_that_a_loss_scaler_leaves_out_is_a_flaw(
    tmp_path: Path, ours: tuple[bool, ...], its: tuple[bool, ...], what: str | None
) -> None:
    """In float64 nothing overflows, so the float64 run trains on where float16 skips a step."""
    event = InputEvent(0, 0, ("ours", "labels"), MEASURES)
    reference = trace(tmp_path / "ours", "float32", event, ours)
    found = flaw_of(reference, trace(tmp_path / "other", "float32", event, its))
    assert (found and found.what) == what
