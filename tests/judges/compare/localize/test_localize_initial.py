"""Parameters that no rank holds before the first step are reported, with the missing module."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.initial import initial
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Overwritten, SetUp, Site
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import ModuleEvent
from tests.support.compare.traces import Record, training, write
from tests.support.localize.blamed_traces import noting

#: The modules of `training`, and their names in these tests.
NAMES = {
    "norm": "decoder.layers.0.norm",
    "fc1": "decoder.layers.1.fc1",
    "fc2": "decoder.layers.2.fc2",
}


def renamed(record: Record) -> Record:
    name = NAMES.get(record.id.module, record.id.module)
    return dataclasses.replace(record, id=msgspec.structs.replace(record.id, module=name))


def watched(trace: Trace, modules: tuple[str, ...]) -> Trace:
    """The trace of a program that watches only `modules`, not the containers around them."""
    known = {name: ModuleEvent(name, "Layer", "/me/layer.py:1") for name in modules}
    ranks = [dataclasses.replace(rank, modules=dict(known)) for rank in trace.ranks]
    return Trace(trace.path, trace.manifest, ranks)


def report(folder: Path, gone: str, modules: tuple[str, ...]) -> str:
    """The report if no stage has the parameters whose paths begin with `gone`."""

    def without(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.path.startswith(gone) else part

    records = [renamed(record) for record in training(steps=1)]
    reference = write(folder / "reference", records)
    candidate = write(folder / "candidate", records, Point.of(pp=2), edit=without)
    rung = RungTraces("float64", watched(candidate, modules), reference)
    rows = initial(compare(rung), rung.candidate).rows
    return " ".join(text for _, text in rows)


LAYERS = ("decoder.layers.0", "decoder.layers.0.norm", "decoder.layers.1", "decoder.layers.1.fc1")


def test_a_layer_on_no_stage_is_named_even_if_no_rank_watches_the_decoder(
    tmp_path: Path,
) -> None:
    text = report(tmp_path, "decoder.layers.2", LAYERS)
    assert "no rank holds decoder.layers.2" in text
    assert "rank 0 of pp has 0, 1" in text


def test_a_missing_parameter_of_an_existing_module_is_not_blamed_on_the_stage_division(
    tmp_path: Path,
) -> None:
    text = report(tmp_path, "decoder.layers.1.fc1.bias", LAYERS)
    assert "no rank holds decoder.layers.1.fc1.bias" in text
    assert "division" not in text


def test_a_layer_on_no_stage_is_due_to_pp_and_the_line_that_sets_up_the_others(
    tmp_path: Path,
) -> None:
    records = [renamed(record) for record in training(steps=1)]
    reference = write(tmp_path / "reference", records)

    def without(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.path.startswith("decoder.layers.2") else part

    sets_up = SetUp("decoder.layers.1", "/me/stages.py:40", "/me/stages.py:90")
    candidate = write(tmp_path / "candidate", records, Point.of(pp=2), edit=without)
    rung = noting(RungTraces("float64", watched(candidate, LAYERS), reference), sets_up)
    found = initial(compare(rung), rung.candidate)

    assert ("axis", "pp, which divides the modules into stages") in found.rows
    assert found.source == "/me/stages.py:40"
    assert found.what.startswith("sets up the modules of a stage, such as decoder.layers.1")


WATCH = Site("watch", "/me/fit.py:46")


def wrong(folder: Path, *facts: msgspec.Struct) -> Located:
    """The report if a parameter of one rank has another initial value, with facts of the ranks."""

    def scaled(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * 1.1 if at["tp"] and record.id.path == "norm.weight" else part

    records = training(steps=1)
    reference = write(folder / "reference", records)
    candidate = write(folder / "candidate", records, Point.of(tp=2), edit=scaled)
    rung = noting(RungTraces("float64", candidate, reference), *facts)
    return initial(compare(rung), rung.candidate)


def test_a_change_after_ctx_initialize_is_told_and_the_class_is_not_blamed(tmp_path: Path) -> None:
    found = wrong(tmp_path, WATCH, Overwritten({"norm.weight": "0"}, (), ("norm.weight",)))
    ((_, text),) = found.rows
    assert text.endswith("the program changes it in place between ctx.initialize and ctx.watch")
    assert "initializes, loads or shards" not in text
    assert found.source == WATCH.at


def test_a_parameter_that_stays_as_initialized_is_blamed_on_what_makes_the_model(
    tmp_path: Path,
) -> None:
    found = wrong(tmp_path, WATCH, Overwritten({"norm.weight": "0"}, (), ("fc1.weight",)))
    ((_, text),) = found.rows
    assert "the code that initializes, loads or shards the model is wrong" in text
    assert found.source.endswith("model.py:4")
