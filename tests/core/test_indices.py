"""The indices of a tensor that each placement gives to each rank."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.indices import (
    LayoutError,
    extract,
    index_arrays,
    local_shape,
    logical_shape,
    scale_shape,
)
from pytest_trainsafe.core.layout import Layout, Partial, Shard, Slices, ZigZag
from pytest_trainsafe.core.point import Point


def rows(layout: Layout, point: Point, length: int) -> list[list[int]]:
    """The rows of dimension 0 that each rank holds."""
    ranks = range(point.world_size)
    where = [point.coordinates(rank) for rank in ranks]
    return [index_arrays(layout, c, point.sizes, (length,))[0].tolist() for c in where]


def test_shard_gives_consecutive_chunks() -> None:
    assert rows((Shard(0, "tp"),), Point.of(tp=2), 4) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("length", [0, 1, 5, 7, 8])
def test_uneven_shard_is_cut_as_torch_chunk_cuts(length: int) -> None:
    chunks = [chunk.tolist() for chunk in torch.arange(length).chunk(4)] if length else []
    padded = chunks + [[]] * (4 - len(chunks))
    assert rows((Shard(0, "dp"),), Point.of(dp=4), length) == padded


def test_zigzag_gives_one_chunk_from_each_end() -> None:
    assert rows((ZigZag(0, "cp"),), Point.of(cp=2), 8) == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_blocks_of_a_dimension_are_sharded_separately() -> None:
    layout = (Shard(0, "tp", blocks=(4, 2)),)
    assert rows(layout, Point.of(tp=2), 6) == [[0, 1, 4], [2, 3, 5]]


def test_first_placement_of_a_dimension_is_the_outer_one() -> None:
    point = Point.of(tp=2, cp=2)  # ranks 0 and 1 are tp neighbours
    cp_outside = rows((ZigZag(0, "cp"), Shard(0, "tp")), point, 8)
    tp_outside = rows((Shard(0, "tp"), ZigZag(0, "cp")), point, 8)
    assert cp_outside == [[0, 1], [6, 7], [2, 3], [4, 5]]
    assert tp_outside == [[0, 3], [4, 7], [1, 2], [5, 6]]


def test_dimensions_are_sharded_independently() -> None:
    point = Point.of(tp=2, cp=2)
    part = extract(
        torch.arange(16).view(4, 4),
        (Shard(0, "cp"), Shard(1, "tp")),
        point.coordinates(3),
        point.sizes,
    )
    assert part.tolist() == [[10, 11], [14, 15]]


def test_rectangular_part_is_a_view_of_the_full_tensor() -> None:
    full = torch.zeros(4, 4)
    point = Point.of(tp=2)
    part = extract(full, (Shard(1, "tp"),), point.coordinates(1), point.sizes)
    assert part.data_ptr() == full[:, 2:].data_ptr()


def test_partial_gives_the_values_to_coordinate_zero() -> None:
    point, full = Point.of(tp=2), torch.ones(2)
    parts = [extract(full, (Partial("tp"),), point.coordinates(r), point.sizes) for r in (0, 1)]
    assert [part.tolist() for part in parts] == [[1, 1], [0, 0]]


def test_the_local_shape_of_slices_is_that_of_their_rectangle() -> None:
    layout = (Slices.rectangle((1, 0), (2, 3), (4, 3), ("dp",)),)
    assert local_shape(layout, {}, {}, (4, 3)) == (2, 3)


def test_logical_shape_while_a_rank_is_absent_assumes_equal_parts() -> None:
    point = Point.of(tp=4)
    held = [((Shard(0, "tp"),), point.coordinates(rank), (3, 5)) for rank in (0, 2)]
    assert logical_shape(held, point.sizes) == (12, 5)


def test_logical_shape_refuses_replicas_of_different_length() -> None:
    point = Point.of(tp=2)
    held: list[tuple[Layout, dict[str, int], tuple[int, ...]]] = [
        ((), point.coordinates(rank), (3 + rank,)) for rank in (0, 1)
    ]
    with pytest.raises(LayoutError, match="3 rows on one rank, but 4 on the rank at "):
        logical_shape(held, point.sizes)


def test_scale_shape_restores_the_full_shape_of_even_shards() -> None:
    point = Point.of(tp=2, cp=3)
    assert scale_shape((4, 5), (ZigZag(0, "cp"), Shard(0, "tp")), point.sizes) == (24, 5)
    assert scale_shape((4, 5), (Partial("cp"),), point.sizes) == (4, 5)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ((Shard(1, "tp"),), "does not fit a tensor of 1 dimensions"),
        ((Shard(0, "ep"),), "not one of tp, cp, dp, pp"),
        ((Shard(0, "tp", (3, 3)),), "the blocks add up to 6, not 8"),
        ((Slices.rectangle((0,), (2,), (9,), ("dp",)),), "not a part of a tensor"),
    ],
)
def test_placement_that_does_not_fit_is_refused(layout: Layout, words: str) -> None:
    point = Point.of(tp=2)
    with pytest.raises(LayoutError, match=words):
        index_arrays(layout, point.coordinates(0), point.sizes, (8,))


def test_the_ranks_terms_of_shared_slices_add_up_to_the_tensor() -> None:
    whole, sizes = torch.arange(4.0), {"tp": 4}
    parts = []
    for rank in range(4):
        start = rank // 2 * 2
        ranges = (((start, start + 2, 1),),)
        layout = (Slices(ranges, (4,), ("tp",), first=rank % 2 == 0), Partial("tp"))
        parts.append(Part(rank, {"tp": rank}, extract(whole, layout, {"tp": rank}, sizes), layout))

    assert [part.tensor.tolist() for part in parts] == [[0, 1], [0, 0], [2, 3], [0, 0]]
    merged = merge(parts, sizes)
    assert merged.tensor is not None
    assert (merged.findings, merged.tensor.tolist()) == ([], whole.tolist())
