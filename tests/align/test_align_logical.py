"""`logical_tensor` merges the parts that the ranks of a trace recorded."""

from __future__ import annotations

from pathlib import Path

import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

POINT = Point.of(tp=2, dp=2)
FULL = torch.arange(12.0).view(4, 3)
GRAD = TensorId(0, None, "main_grad", "fc", "weight")
ACTIVATION = TensorId(0, 1, "activation", "fc", "output")
LAYOUT = (Shard(0, "tp"),)


def record(path: Path) -> Trace:
    """Micro-batch 1 ran on dp coordinate 1; dp coordinate 1 lost its main gradient."""
    write_manifest(
        path,
        manifest_of(
            RunSpec(program="p", axes=POINT.values, mesh=POINT.mesh.declared, dtype="float32"),
            "cpu",
        ),
    )
    for rank in range(4):
        where = POINT.coordinates(rank)
        part = extract(FULL, LAYOUT, where, POINT.sizes)
        writer = RankWriter(path, rank)
        if where["dp"] == 0:
            writer.add_tensor(GRAD, part, LAYOUT, "attribute")
        else:
            writer.add_tensor(ACTIVATION, part, LAYOUT, "modules: fc")
        writer.close()
    return Trace.open(path)


def test_a_micro_batch_tensor_is_complete_if_one_dp_coordinate_recorded_it(tmp_path: Path) -> None:
    merged = logical_tensor(record(tmp_path), ACTIVATION, shape=(4, 3))
    assert merged.findings == []
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, FULL.double())
    assert [part.rank for part in merged.parts] == [2, 3]


def test_a_step_tensor_is_missing_if_one_dp_coordinate_did_not_record_it(tmp_path: Path) -> None:
    merged = logical_tensor(record(tmp_path), GRAD)
    [finding] = merged.findings
    assert (finding.check, finding.where) == ("missing", GRAD)
    assert "ranks 2, 3 should hold a replica" in finding.message
