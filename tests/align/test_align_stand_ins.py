"""A placeholder for a module of another pipeline stage is not compared with that module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import ModuleEvent
from pytest_trainsafe.trace.stand_ins import stand_ins
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

OUTPUT = TensorId(0, 0, "activation", "embedding", "output")

Write = Callable[..., Trace]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a trace of two stages; each argument is a stage's `embedding` module and output."""

    def make(*stages: tuple[ModuleEvent, torch.Tensor], axis: str = "pp") -> Trace:
        manifest = manifest_of(RunSpec(program="p", axes=((axis, 2),), dtype="float32"), "cpu")
        write_manifest(tmp_path, manifest)
        for rank, (module, value) in enumerate(stages):
            writer = RankWriter(tmp_path, rank)
            writer.add(module)
            writer.add_tensor(OUTPUT, value)
            writer.close()
        return Trace.open(tmp_path)

    return make


REAL = ModuleEvent("embedding", "Embedding", "", ("weight",))
IDENTITY = ModuleEvent("embedding", "Identity", "")


def test_an_identity_placeholder_on_another_stage_is_ignored(write: Write) -> None:
    trace = write((REAL, torch.ones(2)), (IDENTITY, torch.zeros(2)))

    merged = logical_tensor(trace, OUTPUT)
    assert merged.findings == []
    assert merged.tensor is not None
    assert merged.tensor.tolist() == [1.0, 1.0]
    assert trace.stand_ins() == {0: frozenset(), 1: frozenset({"embedding"})}


def test_a_module_with_parameters_on_two_stages_has_replicas(write: Write) -> None:
    trace = write((REAL, torch.ones(2)), (REAL, torch.zeros(2)))

    [finding] = logical_tensor(trace, OUTPUT).findings
    assert finding.check == "replicas"
    assert "over pp differ" in finding.message


def test_an_identity_on_another_tp_rank_is_compared(write: Write) -> None:
    """A tp rank that lacks a module trains another model."""
    trace = write((REAL, torch.ones(2)), (IDENTITY, torch.zeros(2)), axis="tp")

    assert [finding.check for finding in logical_tensor(trace, OUTPUT).findings] == ["replicas"]


def _stage(**classes: str) -> Mapping[str, ModuleEvent]:
    """Modules by name and class; one of class Linear or Norm has parameters."""
    return {
        name.replace("_", "."): ModuleEvent(
            name.replace("_", "."), cls, "", ("weight",) if cls in ("Linear", "Norm") else ()
        )
        for name, cls in classes.items()
    }


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (_stage(head="PassOn"), _stage(head="Linear"), {"head"}),
        (_stage(head="Identity"), _stage(head="ReLU"), {"head"}),
        (_stage(head="PassOn"), _stage(head="Block", head_fc="Linear"), {"head"}),
        (_stage(head="ReLU"), _stage(head="ReLU"), set()),
        (_stage(head="ReLU"), _stage(head="GELU"), set()),
        (_stage(head="Norm"), _stage(head="Linear"), set()),
        (_stage(head="Identity"), _stage(head="Identity"), set()),
        (_stage(head="Identity"), _stage(other="Linear"), set()),
        (_stage(head="Pack", head_fc="Linear"), _stage(head="Linear"), set()),
    ],
)
def test_placeholders_have_no_parameters_or_children_and_another_class(
    first: Mapping[str, ModuleEvent], second: Mapping[str, ModuleEvent], found: set[str]
) -> None:
    assert stand_ins({0: first, 1: second})[0] == found
