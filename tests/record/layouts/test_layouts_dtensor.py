"""The layout of a DTensor says which elements each rank holds; checked in fake process groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, debug, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core import layout as ours
from pytest_trainsafe.core.indices import LayoutError, index_arrays
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.layouts.dtensor import dtensor_layout

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@contextmanager
def fake_rank(rank: int, world_size: int) -> Iterator[None]:
    """Makes this process one rank of a fake process group, whose collectives do nothing."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        for name in dir(debug):  # torch caches the meshes of DTensors with this rank's coordinates
            if name.startswith("_clear"):
                getattr(debug, name)()


def sharded(full: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> DTensor:
    return distribute_tensor(full, mesh, placements, src_data_rank=None)


def merged_over(
    point: Point, make: Callable[[], DTensor], sizes: bool = True
) -> tuple[torch.Tensor, list[ours.Layout]]:
    """Merges the ranks' local tensors by their layouts; returns the tensor and the layouts."""
    parts = []
    for rank in range(point.world_size):
        with fake_rank(rank, point.world_size):
            tensor = make()
            layout = dtensor_layout(tensor, point.sizes if sizes else None)
            local = tensor.to_local().detach().clone()
            parts.append(Part(rank, point.coordinates(rank), local, layout, "dtensor"))
    merged = merge(parts, point.sizes, shape=tensor.shape)
    assert merged.findings == []
    assert merged.tensor is not None
    return merged.tensor, [part.layout for part in parts]


@pytest.mark.parametrize("rows", [8, 7, 5, 3])
def test_layouts_of_fsdp2_over_tensor_parallelism_are_exact_even_for_uneven_shards(
    rows: int,
) -> None:
    point = Point.of(tp=2, dp=2)
    full = {
        "0.weight": torch.arange(rows * 4.0).view(rows, 4),
        "0.bias": torch.arange(float(rows)),
        "1.weight": torch.arange(rows * 4.0).view(4, rows),
        "1.bias": torch.arange(4.0),
    }
    expected: dict[str, ours.Layout] = {
        "0.weight": (ours.Shard(0, "tp"), ours.Shard(0, "dp")),
        "0.bias": (ours.Shard(0, "tp"), ours.Shard(0, "dp")),
        "1.weight": (ours.Shard(0, "dp"), ours.Shard(1, "tp")),
        "1.bias": (ours.Shard(0, "dp"),),
    }
    for rank in range(4):
        with fake_rank(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            model = nn.Sequential(nn.Linear(4, rows), nn.Linear(rows, 4))
            model.load_state_dict(full)
            plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
            parallelize_module(model, mesh["tp"], plan, src_data_rank=None)
            fully_shard(model, mesh=mesh["dp"])
            for name, parameter in model.named_parameters():
                assert isinstance(parameter, DTensor)
                layout = dtensor_layout(parameter, point.sizes)
                assert layout == expected[name] == dtensor_layout(parameter)
                arrays = index_arrays(layout, point.coordinates(rank), point.sizes, parameter.shape)
                held = full[name].numpy()[np.ix_(*arrays)]
                assert parameter.to_local().tolist() == held.tolist()
                shape, offset = compute_local_shape_and_global_offset(
                    parameter.shape, parameter.device_mesh, parameter.placements
                )
                assert tuple(map(len, arrays)) == tuple(shape)
                if held.size:
                    assert tuple(int(a[0]) for a in arrays) == tuple(offset)


def test_hybrid_sharding_gives_replicated_slices() -> None:
    full = torch.arange(20.0).view(5, 4)

    def make() -> DTensor:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        return sharded(full, mesh, [Replicate(), Shard(0)])

    for sizes in (True, False):
        merged, layouts = merged_over(Point.of(dp=4), make, sizes)
        assert torch.equal(merged, full.double())
        assert layouts[0] == layouts[2] == (ours.Slices.rectangle((0, 0), (3, 4), (5, 4), ("dp",)),)
        assert layouts[1] == layouts[3] == (ours.Slices.rectangle((3, 0), (2, 4), (5, 4), ("dp",)),)


def test_sharding_over_a_flattened_dp_cp_mesh_gives_slices() -> None:
    full = torch.arange(9.0)

    def make() -> DTensor:
        return sharded(full, init_device_mesh("cpu", (4,), mesh_dim_names=("dp_cp",)), [Shard(0)])

    merged, layouts = merged_over(Point.of(dp=2, cp=2), make)
    assert torch.equal(merged, full.double())
    assert layouts[3] == (ours.Slices.rectangle((0,), (0,), (9,), ("cp", "dp")),)


def test_the_axes_of_a_mesh_without_dimension_names_are_inferred_from_its_ranks() -> None:
    full = torch.arange(8.0)

    def make() -> DTensor:
        return sharded(full, init_device_mesh("cpu", (2, 2)), [Replicate(), Shard(0)])

    merged, layouts = merged_over(Point.of(tp=2, dp=2), make)
    assert torch.equal(merged, full.double())
    assert set(layouts) == {(ours.Shard(0, "tp"),)}
    with fake_rank(0, 4), pytest.raises(LayoutError, match=r"\(no name\).*mesh_dim_names"):
        dtensor_layout(make())


def test_custom_mesh_dimension_names_can_be_mapped_to_axes() -> None:
    with fake_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("model",))
        tensor = sharded(torch.ones(4), mesh, [Shard(0)])
        assert dtensor_layout(tensor, axes={"model": "tp"}) == (ours.Shard(0, "tp"),)
        with pytest.raises(LayoutError, match="model is not one of"):
            dtensor_layout(tensor)


def test_partial_placements_keep_a_sum_or_mean_and_refuse_other_operations() -> None:
    point = Point.of(tp=2)
    with fake_rank(1, 2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        for operation in ("sum", "avg"):
            tensor = DTensor.from_local(torch.ones(2), mesh, [Partial(operation)])
            assert dtensor_layout(tensor, point.sizes) == (ours.Partial("tp", operation),)
        with pytest.raises(LayoutError, match="neither a sum nor a mean"):
            dtensor_layout(DTensor.from_local(torch.ones(2), mesh, [Partial("max")]))


def test_a_mesh_dimension_of_one_rank_is_omitted_from_the_layout() -> None:
    with fake_rank(0, 2):
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("anything", "tp"))
        tensor = sharded(torch.ones(4), mesh, [Shard(0), Shard(0)])
        assert dtensor_layout(tensor) == (ours.Shard(0, "tp"),)


@pytest.mark.parametrize("rows", [12, 10, 7])
def test_strided_shards_over_one_mesh_dimension_give_blocks(rows: int) -> None:
    """Packed projections and flattened views: each of three blocks is sharded separately."""
    full = torch.arange(rows * 2.0).view(rows, 2)

    def make() -> DTensor:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        return sharded(full, mesh, [_StridedShard(0, split_factor=3)])

    merged, layouts = merged_over(Point.of(tp=2), make)
    assert torch.equal(merged, full.double())
    blocks = tuple(map(len, full.chunk(3)))
    assert set(layouts) == {(ours.Shard(0, "tp", blocks),)}


def test_the_layout_of_a_strided_shard_merges_strided_but_not_plain_shards() -> None:
    point, full = Point.of(tp=2), torch.arange(8.0)
    placements = [Shard(0), _StridedShard(0, split_factor=2)]
    held = []
    for rank in range(2):
        with fake_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            plain, strided = (sharded(full, mesh, [each]).to_local().clone() for each in placements)
            layout = dtensor_layout(sharded(full, mesh, [placements[1]]), point.sizes)
            held.append(((plain, strided), layout))
    for values, right in ((0, False), (1, True)):
        parts = [
            Part(rank, point.coordinates(rank), local[values], layout, "dtensor")
            for rank, (local, layout) in enumerate(held)
        ]
        merged = merge(parts, point.sizes, shape=full.shape).tensor
        assert merged is not None
        assert torch.equal(merged, full.double()) is right


def test_blocks_sharded_over_tp_can_be_sharded_again_over_dp() -> None:
    full, point = torch.arange(16.0), Point.of(tp=2, dp=2)

    def make() -> DTensor:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        cut = sharded(full, mesh["tp"], [_StridedShard(0, split_factor=2)]).to_local()
        local_part = cut.chunk(2)[mesh.get_local_rank("dp")]
        placements = [_StridedShard(0, split_factor=2), _StridedShard(0, split_factor=2)]
        return DTensor.from_local(
            local_part, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
        )

    merged, layouts = merged_over(point, make)
    assert torch.equal(merged, full.double())
    assert set(layouts) == {(ours.Shard(0, "tp", (8, 8)), ours.Shard(0, "dp"))}


def test_strided_blocks_of_uneven_shards_are_refused() -> None:
    with fake_rank(0, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        placements = [_StridedShard(0, split_factor=4), Shard(0)]
        tensor = DTensor.from_local(
            torch.ones(2), mesh, placements, run_check=False, shape=torch.Size([7]), stride=(1,)
        )
        with pytest.raises(LayoutError, match="shards of dimension 0 have unequal"):
            dtensor_layout(tensor, Point.of(tp=2, dp=2).sizes)
