"""Ranges of flattened tensors (`Flat` layouts) are extracted, merged, and checked."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trainsafe.align.merge import Merged, Part, merge
from pytest_trainsafe.core.indices import (
    LayoutError,
    extract,
    index_arrays,
    local_shape,
    logical_shape,
    scale_shape,
)
from pytest_trainsafe.core.layout import (
    Flat,
    Layout,
    Partial,
    Placement,
    Scaled,
    Shard,
    Striped,
    ZigZag,
)
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.model.consistent import consistent_tensor

SOURCE = "attribute"
DP2 = Point.of(dp=2)
FULL = torch.arange(24.0).view(4, 6)

Case = tuple[Point, dict[int, Layout], tuple[int, ...]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A Point, a layout of each rank that ends in a `Flat` range, and a logical shape.

    The ranks that share a flat tensor split it at random offsets.  Each such group of ranks has
    its own offsets, as each pipeline stage has.
    """
    point = Point.of(tp=draw(st.integers(1, 2)), cp=draw(st.integers(1, 2)), dp=3)
    shape: tuple[int, ...] = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    outer: list[Placement] = []
    if len(shape) > 0 and draw(st.booleans()):
        outer.append(Shard(draw(st.integers(0, len(shape) - 1)), "tp"))
    axes: tuple[str, ...] = draw(st.sampled_from([("dp",), ("dp", "cp")]))
    if axes == ("dp",):
        dim = draw(st.integers(0, max(len(shape) - 1, 0)))
        over_cp = [Partial("cp"), Partial("cp", "avg"), Scaled("cp")]
        over_cp += [ZigZag(dim, "cp"), Striped(dim, "cp")] if shape else []
        outer += draw(st.lists(st.sampled_from(over_cp), max_size=1))
    layouts: dict[int, Layout] = {}
    cuts: dict[tuple[int, ...], list[int]] = {}
    for rank in range(point.world_size):
        where = point.coordinates(rank)
        box = local_shape(tuple(outer), where, point.sizes, shape)
        elsewhere = tuple(at for axis, at in where.items() if axis not in axes)
        parts = math.prod(point.sizes[axis] for axis in axes)
        if elsewhere not in cuts:
            inner = st.integers(0, math.prod(box))
            middle = draw(st.lists(inner, min_size=parts - 1, max_size=parts - 1))
            cuts[elsewhere] = [0, *sorted(middle), math.prod(box)]
        place = where["dp"] * (point.sizes["cp"] if "cp" in axes else 1)
        place += where["cp"] if "cp" in axes else 0
        start, end = cuts[elsewhere][place : place + 2]
        layouts[rank] = (*outer, Flat(start, end - start, box, axes))
    return point, layouts, shape


def parts_of(full: torch.Tensor, layouts: dict[int, Layout], point: Point) -> list[Part]:
    return [
        Part(r, point.coordinates(r), extract(full, layout, point.coordinates(r), point.sizes),
             layout, SOURCE)
        for r, layout in layouts.items()
    ]  # fmt: skip


@given(cases())
@settings(max_examples=200, deadline=None)
def test_extracting_flat_ranges_then_merging_is_the_identity(case: Case) -> None:
    point, layouts, shape = case
    full = torch.arange(math.prod(shape), dtype=torch.float32).view(shape) - 5
    parts = parts_of(full, layouts, point)
    merged = merge(parts, point.sizes, shape=shape)
    assert merged.findings == []
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, full.double())
    assert merged.parts == parts


@given(cases())
@settings(max_examples=100, deadline=None)
def test_index_functions_agree_on_the_elements_and_shapes_of_flat_ranges(case: Case) -> None:
    point, layouts, shape = case
    held = []
    values = consistent_tensor("key", shape)
    for rank, layout in layouts.items():
        where = point.coordinates(rank)
        part = extract(values, layout, where, point.sizes)
        drawn = consistent_tensor("key", shape, layout=layout, coordinates=where, sizes=point.sizes)
        assert torch.equal(drawn, part) or any(isinstance(p, Partial) for p in layout)
        assert tuple(part.shape) == local_shape(layout, where, point.sizes, shape)
        held.append((layout, where, tuple(part.shape)))
        # The bounding box of a range contains all of its elements.
        box = index_arrays(layout, where, point.sizes, shape)
        assert math.prod(map(len, box)) >= part.numel()
        mask = torch.zeros(shape, dtype=torch.bool)
        mask[tuple(torch.from_numpy(each) for each in torch_grid(box))] = True
        inside = extract(mask, tuple(p for p in layout if not isinstance(p, Partial | Scaled)),
                         where, point.sizes)  # fmt: skip
        assert bool(inside.all())
    assert logical_shape(held, point.sizes) == shape


def torch_grid(box: list) -> tuple:
    import numpy as np

    return np.ix_(*box)


def flat_range(offset: int, length: int, shape: tuple[int, ...] = (4, 6)) -> Layout:
    return (Flat(offset, length, shape, ("dp",)),)


def merged_ranges(*ranges: tuple[int, int], point: Point = DP2) -> Merged:
    layouts = {rank: flat_range(*each) for rank, each in enumerate(ranges)}
    return merge(parts_of(FULL, layouts, point), point.sizes)


def test_elements_held_by_no_rank_are_a_hole_finding_and_masked() -> None:
    merged = merged_ranges((0, 8), (10, 14))
    (found,) = merged.findings
    assert found.check == "hole"
    assert "2 of 24 elements are held by no rank of dp, the first at [1, 2]" in found.message
    assert "held by ranks 0, 1" in found.message
    assert "flattened and split into ranges over dp" in found.message
    assert merged.missing is not None
    assert merged.whole is None
    assert merged.missing.nonzero().tolist() == [[1, 2], [1, 3]]


def test_an_element_in_two_different_ranges_is_an_overlap_finding() -> None:
    (found,) = merged_ranges((0, 13), (12, 12)).findings
    assert found.check == "overlap"
    assert "1 of 24 elements are held by more than one rank of dp, the first at [2, 0]" in (
        found.message
    )


def test_ranks_with_equal_ranges_are_compared_as_replicas() -> None:
    point = Point.of(dp=4)
    layouts = {rank: flat_range(12 * (rank % 2), 12) for rank in range(4)}
    parts = parts_of(FULL.clone(), layouts, point)
    assert merge(parts, point.sizes).findings == []
    odd = Part(3, parts[3].coordinates, parts[3].tensor + 1, parts[3].layout, SOURCE)
    (found,) = merge([*parts[:3], odd], point.sizes).findings
    assert found.check == "replicas"
    assert "rank 3 from rank 1" in found.message


def test_copies_with_different_split_offsets_are_compared_after_merging() -> None:
    """A tied embedding has different offsets in the flat buffers of two pipeline stages."""
    point = Point.of(pp=2, dp=2)
    layouts = {
        0: flat_range(0, 8),
        1: flat_range(8, 16),
        2: flat_range(0, 20),
        3: flat_range(20, 4),
    }
    parts = parts_of(FULL, layouts, point)
    assert merge(parts, point.sizes).findings == []
    odd = Part(3, parts[3].coordinates, parts[3].tensor + 1, parts[3].layout, SOURCE)
    (found,) = merge([*parts[:3], odd], point.sizes).findings
    assert found.check == "replicas"
    assert "over pp differ: rank 2 from rank 0" in found.message
    assert "first at row 3, index [3, 2]" in found.message


def test_a_tp_rank_without_its_replica_of_a_range_is_named() -> None:
    point = Point.of(tp=2, dp=2)
    layouts = {rank: flat_range(12 * (rank // 2), 12) for rank in range(4)}
    parts = [part for part in parts_of(FULL, layouts, point) if part.coordinates["tp"] == 0]
    (found,) = merge(parts, point.sizes).findings
    assert found.check == "missing"
    assert "rank 1 should hold a replica" in found.message


def test_a_rank_may_hold_no_range_if_another_rank_holds_all_elements() -> None:
    parts = parts_of(FULL, {1: flat_range(0, 24)}, DP2)
    assert merge(parts, DP2.sizes).findings == []


def test_a_scalar_may_be_held_by_one_rank_of_several() -> None:
    part = Part(1, DP2.coordinates(1), torch.tensor([7.0]), (Flat(0, 1, (), ("dp",)),))
    merged = merge([part], DP2.sizes)
    assert merged.findings == []
    assert merged.tensor is not None
    assert merged.tensor.shape == ()
    assert merged.tensor.item() == 7


@pytest.mark.parametrize(
    ("length", "shape", "words"),
    [
        (11, (4, 6), "rank 0 holds a tensor of shape [12], but its layout describes a range of 11"),
        (12, (2, 5), "exceeds the tensor, which has 10 elements"),
        (
            12,
            (6, 4),
            "holds a range of a tensor of shape [4, 6], but rank 0 holds a range of a tensor of ",
        ),
    ],
)
def test_a_part_that_does_not_fit_its_range_is_a_layout_finding(
    length: int, shape: tuple[int, ...], words: str
) -> None:
    parts = parts_of(FULL, {0: flat_range(0, 12), 1: flat_range(12, 12)}, DP2)
    parts[0] = Part(0, parts[0].coordinates, parts[0].tensor, flat_range(0, length, shape), SOURCE)
    merged = merge(parts, DP2.sizes)
    assert merged.tensor is None
    assert merged.findings[0].check == "layout"
    assert words in merged.findings[0].message


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ((Flat(0, 12, (4, 6), ("dp",)), Shard(0, "tp")), "must be the last of the placements in"),
        ((Shard(0, "dp"), Flat(0, 6, (2, 6), ("dp",))), "both act over dp"),
        ((Flat(0, 12, (6, 4), ("dp",)),), "is a range of a tensor of shape"),
    ],
)
def test_invalid_flat_layouts_are_refused(layout: Layout, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        extract(FULL, layout, {"dp": 0, "tp": 0}, {"dp": 2, "tp": 2})


def test_logical_shape_is_computed_from_a_flat_range_of_a_shard() -> None:
    layout = (Shard(0, "tp"), Flat(3, 5, (2, 6), ("dp",)))
    assert scale_shape((5,), layout, {"tp": 2, "dp": 2}) == (4, 6)


def test_gradients_with_scaled_layouts_are_divided_by_the_axis_sizes() -> None:
    point = Point.of(cp=2, dp=2)
    layout = (Partial("cp"), Scaled("cp"), Scaled("dp"))
    parts = [
        Part(r, point.coordinates(r), torch.tensor([4.0 + r]), layout) for r in (0, 1)
    ]  # a micro-batch of dp rank 0
    merged = merge(parts, point.sizes, free_axes=("pp", "dp"))
    assert merged.findings == []
    assert merged.tensor is not None
    assert merged.tensor.item() == 9 / 4
    whole = merge([Part(0, {"dp": 0}, torch.tensor([6.0]), (Scaled("dp"),))], {"dp": 3},
                  free_axes=("dp",))  # fmt: skip
    assert whole.tensor is not None
    assert whole.tensor.item() == 2
