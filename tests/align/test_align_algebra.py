"""Cutting a tensor into the ranks' parts and merging them gives the tensor back."""

from __future__ import annotations

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.indices import extract, index_arrays, local_shape, logical_shape
from pytest_trainsafe.core.layout import (
    Layout,
    Partial,
    Placement,
    Shard,
    Slices,
    Split,
    Striped,
    ZigZag,
    axes_of,
)
from pytest_trainsafe.core.point import Point

Case = tuple[Point, Layout, tuple[int, ...]]


@st.composite
def cases(draw: st.DrawFn, partial: bool = True) -> Case:
    """A Point of up to three axes, a layout over them, and a logical shape that it fits."""
    axes = draw(st.permutations(["tp", "cp", "dp"]))
    point = Point.of({axis: draw(st.integers(1, 3)) for axis in axes})
    shape = tuple(draw(st.lists(st.integers(0, 13), min_size=1, max_size=3)))
    layout: list[Placement] = []
    for axis in axes:
        dim = draw(st.integers(0, len(shape) - 1))
        fresh = all(p.dim != dim for p in layout if isinstance(p, Split))
        kinds = ["none", "shard", "zigzag", "striped"] + ["partial"] * partial
        match draw(st.sampled_from(kinds + ["blocks"] * (fresh and shape[dim] > 0))):
            case "shard":
                layout.append(Shard(dim, axis))
            case "zigzag":
                layout.append(ZigZag(dim, axis))
            case "striped":
                layout.append(Striped(dim, axis))
            case "partial":
                layout.append(Partial(axis, draw(st.sampled_from(["sum", "avg"]))))
            case "blocks":
                cuts = draw(st.sets(st.integers(1, shape[dim])))
                edges = sorted({0, shape[dim], *cuts})
                sizes = tuple(b - a for a, b in itertools.pairwise(edges))
                layout.append(Shard(dim, axis, sizes))
    return point, tuple(layout), shape


def parts_of(full: torch.Tensor, layout: Layout, point: Point) -> list[Part]:
    ranks = range(point.world_size)
    return [
        Part(r, c, extract(full, layout, c, point.sizes).clone(), layout, "modules: it")
        for r in ranks
        for c in [point.coordinates(r)]
    ]


@given(cases(), st.sampled_from([torch.float32, torch.bfloat16, torch.int32, torch.complex64]))
@settings(max_examples=150, deadline=None)
def test_extract_then_merge_is_the_identity(case: Case, dtype: torch.dtype) -> None:
    point, layout, shape = case
    if not dtype.is_floating_point:  # means of integers need not be integers
        layout = tuple(Partial(p.axis) if isinstance(p, Partial) else p for p in layout)
    full = (torch.arange(math.prod(shape)).view(shape) - 5).to(dtype)
    merged = merge(parts_of(full, layout, point), point.sizes, shape=shape)
    assert merged.findings == []
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, full.to(merged.tensor.dtype))


@given(cases(partial=False))
@settings(max_examples=150, deadline=None)
def test_every_element_is_held_once_per_replica(case: Case) -> None:
    point, layout, shape = case
    sizes = point.sizes
    held = [0] * math.prod(shape)
    for rank in range(point.world_size):
        arrays = index_arrays(layout, point.coordinates(rank), sizes, shape)
        for index in itertools.product(*(array.tolist() for array in arrays)):
            flat = 0
            for i, length in zip(index, shape, strict=True):
                flat = flat * length + i
            held[flat] += 1
    replicas = point.world_size // math.prod(sizes[axis] for p in layout for axis in axes_of(p))
    assert set(held) <= {replicas}


@given(cases())
@settings(max_examples=100, deadline=None)
def test_logical_shape_is_computed_from_the_local_shapes(case: Case) -> None:
    point, layout, shape = case
    held = []
    for rank in range(point.world_size):
        where = point.coordinates(rank)
        held.append((layout, where, local_shape(layout, where, point.sizes, shape)))
    assert logical_shape(held, point.sizes) == shape


@given(cases(partial=False))
@settings(max_examples=100, deadline=None)
def test_rectangles_made_from_a_sharded_layout_merge_into_the_full_tensor(case: Case) -> None:
    point, layout, shape = case
    layout = tuple(Shard(p.dim, p.axis) for p in layout if isinstance(p, Shard))
    axes = tuple(axis for p in layout for axis in axes_of(p))
    full = torch.arange(math.prod(shape), dtype=torch.float64).view(shape)
    parts = []
    for part in parts_of(full, layout, point):
        arrays = index_arrays(layout, part.coordinates, point.sizes, shape)
        offsets = tuple(int(a[0]) if len(a) else 0 for a in arrays)
        rectangle = Slices.rectangle(offsets, tuple(part.tensor.shape), shape, axes)
        parts.append(Part(part.rank, part.coordinates, part.tensor, (rectangle,), "dtensor"))
    merged = merge(parts, point.sizes)
    assert merged.findings == []
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, full)
