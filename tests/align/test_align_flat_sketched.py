"""Sketches of flat ranges and scaled terms sum to the logical tensor's sketch, or give none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_trainsafe.align.sketched import is_whole, logical_sketch
from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Flat, Layout, Partial, Scaled, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.tensors.sketch import Sketcher
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

FULL = torch.randn(64, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ID = TensorId(0, None, "main_grad", "fc", "weight")
POINT = Point.of(tp=2, dp=2)
SHARD = Shard(0, "tp")


def record(path: Path, point: Point, parts: dict[int, tuple[Layout, torch.Tensor]]) -> Trace:
    spec = RunSpec(program="p", axes=point.values, mesh=point.mesh.declared, dtype="float64")
    manifest = manifest_of(spec, "cpu")
    write_manifest(path, manifest)
    for rank in range(point.world_size):
        writer = RankWriter(path, rank, Sketcher(point.coordinates(rank), point.sizes))
        if rank in parts:
            layout, tensor = parts[rank]
            writer.add_tensor(ID, tensor.contiguous(), layout)
        writer.close()
    return Trace.open(path)


def cut(point: Point, layouts: dict[int, Layout]) -> dict[int, tuple[Layout, torch.Tensor]]:
    return {
        rank: (layout, extract(FULL, layout, point.coordinates(rank), point.sizes))
        for rank, layout in layouts.items()
    }


def flat_range(offset: int, length: int, rows: int = 32) -> Flat:
    return Flat(offset, length, (rows, 40), ("dp",))


TILED: dict[int, Layout] = {
    r: (SHARD, flat_range(700 * (r // 2), 700 - 120 * (r // 2))) for r in range(4)
}


@pytest.mark.parametrize(
    "layouts",
    [
        TILED,
        {**{r: (SHARD, flat_range(0, 1280)) for r in (0, 1)}},
        {r: (Partial("tp"), Scaled("dp"), Scaled("tp")) for r in range(4)},
    ],
    ids=["runs of shards", "a rank without elements", "terms of multiples"],
)
def test_sketches_of_parts_sum_to_the_sketch_of_the_logical_tensor(
    tmp_path: Path, layouts: dict[int, Layout]
) -> None:
    trace = record(tmp_path, POINT, cut(POINT, layouts))
    assert not is_whole(trace, ID)
    found = logical_sketch(trace, ID)
    right = Sketcher({}, {}).sketch(FULL, ())
    assert found is not None
    assert right is not None
    assert found.shape == (64, 40)
    assert np.allclose(found.values, right[0], rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(
    "layouts",
    [
        {r: layout for r, layout in TILED.items() if r != 3},
        {**TILED, 3: (SHARD, flat_range(720, 560))},
        {**TILED, 3: (SHARD, flat_range(690, 590))},
        {**TILED, 1: (SHARD, flat_range(0, 900)), 3: (SHARD, flat_range(900, 380))},
    ],
    ids=["a run is missing", "a hole", "an overlap", "copies cut elsewhere"],
)
def test_missing_overlapping_or_differently_split_ranges_have_no_logical_sketch(
    tmp_path: Path, layouts: dict[int, Layout]
) -> None:
    assert logical_sketch(record(tmp_path, POINT, cut(POINT, layouts)), ID) is None


def test_ranges_whose_replicas_differ_have_no_logical_sketch(tmp_path: Path) -> None:
    layouts: dict[int, Layout] = {r: (flat_range(1280 * (r // 2), 1280, 64),) for r in range(4)}
    parts = cut(POINT, layouts)
    assert logical_sketch(record(tmp_path / "same", POINT, parts), ID) is not None
    parts[3] = parts[3][0], parts[3][1] + 1
    assert logical_sketch(record(tmp_path / "odd", POINT, parts), ID) is None
