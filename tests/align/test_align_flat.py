"""Runs of flattened tensors: cut, merged, and what is said of those that do not fit."""

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
from pytest_trainsafe.core.layout import Flat, Layout, Partial, Placement, Scaled, Shard, ZigZag
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.model.consistent import consistent_tensor

SOURCE = "attribute"
DP2 = Point.of(dp=2)
FULL = torch.arange(24.0).view(4, 6)

Case = tuple[Point, dict[int, Layout], tuple[int, ...]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A Point, a layout for each rank that ends in a run, and a logical shape.

    Ranks that share a run's tensor cut it anywhere; each such set of ranks does it its own way,
    as pipeline stages do.
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
        over_cp += [ZigZag(dim, "cp")] if shape else []
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
def test_cutting_in_runs_and_merging_is_the_identity(case: Case) -> None:
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
def test_the_arithmetic_of_runs_agrees_with_itself(case: Case) -> None:
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
        # The box around a run holds all of it.
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


def run(offset: int, length: int, shape: tuple[int, ...] = (4, 6)) -> Layout:
    return (Flat(offset, length, shape, ("dp",)),)


def merged_runs(*runs: tuple[int, int], point: Point = DP2) -> Merged:
    layouts = {rank: run(*each) for rank, each in enumerate(runs)}
    return merge(parts_of(FULL, layouts, point), point.sizes)


def test_what_no_rank_holds_is_a_hole_and_not_a_number() -> None:
    merged = merged_runs((0, 8), (10, 14))
    (found,) = merged.findings
    assert found.check == "hole"
    assert "2 of 24 elements are held by no rank of dp, the first at [1, 2]" in found.message
    assert "held by ranks 0, 1" in found.message
    assert "flattened and split into ranges over dp" in found.message
    assert merged.tensor is not None
    assert merged.tensor.isnan().nonzero().tolist() == [[1, 2], [1, 3]]


def test_what_two_ranks_hold_with_different_runs_overlaps() -> None:
    (found,) = merged_runs((0, 13), (12, 12)).findings
    assert found.check == "overlap"
    assert "1 of 24 elements are held by more than one rank of dp, the first at [2, 0]" in (
        found.message
    )


def test_equal_runs_are_replicas() -> None:
    point = Point.of(dp=4)
    layouts = {rank: run(12 * (rank % 2), 12) for rank in range(4)}
    parts = parts_of(FULL.clone(), layouts, point)
    assert merge(parts, point.sizes).findings == []
    odd = Part(3, parts[3].coordinates, parts[3].tensor + 1, parts[3].layout, SOURCE)
    (found,) = merge([*parts[:3], odd], point.sizes).findings
    assert found.check == "replicas"
    assert "rank 3 from rank 1" in found.message


def test_copies_that_were_cut_elsewhere_are_compared_whole() -> None:
    """A tied embedding on two pipeline stages lies at another offset of each stage's buffer."""
    point = Point.of(pp=2, dp=2)
    layouts = {0: run(0, 8), 1: run(8, 16), 2: run(0, 20), 3: run(20, 4)}
    parts = parts_of(FULL, layouts, point)
    assert merge(parts, point.sizes).findings == []
    odd = Part(3, parts[3].coordinates, parts[3].tensor + 1, parts[3].layout, SOURCE)
    (found,) = merge([*parts[:3], odd], point.sizes).findings
    assert found.check == "replicas"
    assert "over pp differ: rank 2 from rank 0" in found.message
    assert "first at row 3, index [3, 2]" in found.message


def test_a_copy_that_is_missing_on_a_rank_of_tp_is_named() -> None:
    point = Point.of(tp=2, dp=2)
    layouts = {rank: run(12 * (rank // 2), 12) for rank in range(4)}
    parts = [part for part in parts_of(FULL, layouts, point) if part.coordinates["tp"] == 0]
    (found,) = merge(parts, point.sizes).findings
    assert found.check == "missing"
    assert "rank 1 should hold a replica" in found.message


def test_a_rank_without_elements_need_hold_nothing() -> None:
    parts = parts_of(FULL, {1: run(0, 24)}, DP2)
    assert merge(parts, DP2.sizes).findings == []


def test_a_number_may_be_held_by_one_rank_of_many() -> None:
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
def test_parts_that_are_not_their_runs_are_named(
    length: int, shape: tuple[int, ...], words: str
) -> None:
    parts = parts_of(FULL, {0: run(0, 12), 1: run(12, 12)}, DP2)
    parts[0] = Part(0, parts[0].coordinates, parts[0].tensor, run(0, length, shape), SOURCE)
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
def test_layouts_that_make_no_sense_are_refused(layout: Layout, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        extract(FULL, layout, {"dp": 0, "tp": 0}, {"dp": 2, "tp": 2})


def test_the_logical_shape_follows_from_a_run_of_a_shard() -> None:
    layout = (Shard(0, "tp"), Flat(3, 5, (2, 6), ("dp",)))
    assert scale_shape((5,), layout, {"tp": 2, "dp": 2}) == (4, 6)


def test_gradients_of_a_mean_are_divided_by_the_ranks_they_await() -> None:
    point = Point.of(cp=2, dp=2)
    layout = (Partial("cp"), Scaled("cp"), Scaled("dp"))
    parts = [
        Part(r, point.coordinates(r), torch.tensor([4.0 + r]), layout) for r in (0, 1)
    ]  # one micro-batch, which is dp rank 0's
    merged = merge(parts, point.sizes, free_axes=("pp", "dp"))
    assert merged.findings == []
    assert merged.tensor is not None
    assert merged.tensor.item() == 9 / 4
    whole = merge([Part(0, {"dp": 0}, torch.tensor([6.0]), (Scaled("dp"),))], {"dp": 3},
                  free_axes=("dp",))  # fmt: skip
    assert whole.tensor is not None
    assert whole.tensor.item() == 2
