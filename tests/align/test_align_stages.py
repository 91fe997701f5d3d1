"""Tensors of pipeline stages are merged as replicas or partial sums, or are split over stages."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.align.logical import is_cut_over_stages, logical_tensor
from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.layout import Layout, Partial
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.record.model.parameter_layout import gradient_partial_axes
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import ModuleEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

#: The modules of each of three pipeline stages.
STAGES = (
    ("", "embedding", "decoder", "decoder.layers.0", "rope"),
    ("", "decoder", "decoder.layers.1", "rope"),
    ("", "embedding", "embedding.words", "decoder", "decoder.layers.2", "rope", "output_layer"),
)


def activation(module: str, kind: Kind = "activation") -> TensorId:
    return TensorId(0, 0, kind, module, "output")


TERM = TensorId(0, 0, "param_grad", "embedding", "weight")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A trace in which every stage called all of its modules, but the last stage no embedding."""
    path = tmp_path_factory.mktemp("stages") / "trace"
    manifest = manifest_of(RunSpec(program="p", axes=(("pp", 3),), dtype="float32"), "cpu")
    write_manifest(path, manifest)
    over_pp: Layout = (Partial("pp"),)
    for rank, modules in enumerate(STAGES):
        writer = RankWriter(path, rank)
        for name in modules:
            writer.add(ModuleEvent(name, "Module", ""))
            if rank < 2 or not name.startswith("embedding"):
                writer.add_tensor(activation(name), torch.ones(2))
                writer.add_tensor(activation(name, "activation_grad"), torch.ones(2))
        if rank != 1:
            writer.add_tensor(TERM, torch.full((2,), rank + 1.0), over_pp)
        writer.close()
    return Trace.open(path)


@pytest.mark.parametrize("kind", ["activation", "activation_grad"])
@pytest.mark.parametrize(
    ("module", "cut"),
    [("", True), ("decoder", True), ("decoder.layers.1", False), ("embedding", False)],
)
def test_a_container_is_split_over_stages_and_a_layer_is_not(
    trace: Trace, module: str, cut: bool, kind: Kind
) -> None:
    assert is_cut_over_stages(trace, activation(module, kind)) is cut


def test_a_leaf_module_on_every_stage_has_replicas(trace: Trace) -> None:
    assert not is_cut_over_stages(trace, activation("rope"))
    assert len(logical_tensor(trace, activation("rope")).parts) == 3


def test_gradients_of_a_parameter_on_two_stages_are_summed(trace: Trace) -> None:
    merged = logical_tensor(trace, TERM)
    assert merged.findings == []
    assert merged.tensor is not None
    assert merged.tensor.tolist() == [4.0, 4.0]


def test_the_gradient_of_a_shared_embedding_is_partial_over_pp() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.shared_embedding = True  # type: ignore[attr-defined]
    none = Annotations.empty()
    assert gradient_partial_axes("w", weight, Point.of(pp=2, cp=2), none) == ("cp", "pp")
    assert gradient_partial_axes("w", weight, Point.of(tp=2), none) == ()
