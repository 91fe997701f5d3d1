"""Sketches estimate norms, and the sketches of a tensor's parts add up to that of the tensor."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import (
    Layout,
    Partial,
    Shard,
    Slices,
    Split,
    Striped,
    ZigZag,
    axes_of,
)
from pytest_trainsafe.trace.tensors.signs import signs
from pytest_trainsafe.trace.tensors.sketch import COLUMNS, ROWS, Sketcher

SIZES = {"tp": 2, "cp": 2, "dp": 1, "pp": 1}

LAYOUTS: dict[str, Layout] = {
    "rows": (Shard(0, "tp"),),
    "columns": (Shard(-1, "tp"),),
    "blocks": (Shard(-1, "tp", blocks=(64, 32)),),
    "zig-zag": (ZigZag(0, "cp"),),
    "striped": (Striped(0, "cp"),),
    "both": (ZigZag(0, "cp"), Shard(0, "tp")),
    "two dimensions": (Shard(0, "tp"), Shard(-1, "cp")),
    "partial": (Partial("cp"), Shard(0, "tp")),
}

SHAPES = {"vector": (96,), "matrix": (32, 96), "three": (16, 4, 96)}


def whole(values: torch.Tensor) -> torch.Tensor:
    made = Sketcher(dict.fromkeys(SIZES, 0), dict.fromkeys(SIZES, 1)).sketch(values, ())
    assert made is not None
    return torch.from_numpy(made[0])


def summed(values: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The sum of the sketches of all ranks that hold different parts."""
    axes = dict.fromkeys(axis for p in layout if not isinstance(p, Slices) for axis in axes_of(p))
    total = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    for places in itertools.product(*(range(SIZES[axis]) for axis in axes)):
        coordinates = {**dict.fromkeys(SIZES, 0), **dict(zip(axes, places, strict=True))}
        part = extract(values, layout, coordinates, SIZES).contiguous()
        made = Sketcher(coordinates, SIZES).sketch(part, layout)
        assert made is not None
        assert made[1] == tuple(values.shape)
        total += torch.from_numpy(made[0])
    return total


def resolved(layout: Layout, ndim: int) -> Layout:
    """The layout with its dimensions counted from the front."""
    return tuple(
        type(p)(p.dim % ndim, *[getattr(p, f) for f in p.__struct_fields__[1:]])
        if isinstance(p, Split)
        else p
        for p in layout
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_sketches_of_parts_add_up_to_the_sketch_of_the_whole_tensor(layout, shape, dtype) -> None:
    layout = resolved(layout, len(shape))
    values = torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(1))
    values = (values * 1000).to(dtype) if dtype == torch.int64 else values.to(dtype)
    expected = whole(values)

    assert (summed(values, layout) - expected).abs().max() < 1e-12 * expected.norm()


@pytest.mark.parametrize("layout", ["rows", "zig-zag", "both"])
def test_sketches_of_parts_of_a_vector_of_whole_rows_add_up(layout) -> None:
    """A vector is sketched in rows of 64 elements; each part begins and ends with a row."""
    values = torch.randn(1024, dtype=torch.float64, generator=torch.manual_seed(1))
    expected = whole(values)

    assert (summed(values, LAYOUTS[layout]) - expected).abs().max() < 1e-12 * expected.norm()


def test_sketches_of_complex_tensors_add_up_and_estimate_the_norm() -> None:
    values = torch.randn(8, 32, dtype=torch.complex128)
    layout = (Shard(1, "tp"),)

    assert torch.allclose(summed(values, layout), whole(values), rtol=0, atol=1e-12)
    assert whole(values).square().mean().sqrt() == pytest.approx(values.norm(), rel=0.5)


def test_a_sketch_is_linear() -> None:
    left, right = torch.randn(2, 300, 40, dtype=torch.float64)

    assert torch.allclose(whole(left - right), whole(left) - whole(right), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "shape", [(20000,), (64000,), (700, 90), (3, 9000), (2, 3, 50, 60), (5000, 2), (20, 9000)]
)
def test_a_sketch_computed_in_tiles_equals_the_matrix_product(shape) -> None:
    values = torch.randn(shape, dtype=torch.float64)
    made = whole(values)
    rows, columns = (-(-values.numel() // 64), 64) if len(shape) == 1 else (-1, shape[-1])
    padded = torch.zeros(rows * columns, dtype=torch.float64) if len(shape) == 1 else values
    if len(shape) == 1:
        padded[: len(values)] = values
    matrix = padded.reshape(rows, columns).numpy()
    row_signs = signs(np.arange(matrix.shape[0]), ROWS, 1)
    column_signs = signs(np.arange(matrix.shape[1]), COLUMNS, 2)

    assert np.allclose(made.numpy(), row_signs @ matrix @ column_signs.T, rtol=0, atol=1e-9)


def test_the_norm_of_a_tensor_with_one_nonzero_element_is_exact() -> None:
    values = torch.zeros(100, 100, dtype=torch.float64)
    values[17, 42] = -3.5

    assert whole(values).square().mean().sqrt() == 3.5


def test_the_norm_estimate_is_unbiased_and_has_the_derived_variance() -> None:
    """For random dense tensors, and tensors with one nonzero row or column, or of rank one."""
    generator = torch.manual_seed(0)

    def ratios(make) -> torch.Tensor:
        drawn = [make() for _ in range(400)]
        return torch.stack([whole(x).square().mean() / x.square().sum() for x in drawn])

    def row() -> torch.Tensor:
        values = torch.zeros(64, 64, dtype=torch.float64)
        at = int(torch.randint(64, (1,), generator=generator))
        values[at] = torch.randn(64, dtype=torch.float64, generator=generator)
        return values

    def rank_one() -> torch.Tensor:
        left, right = torch.randn(2, 64, dtype=torch.float64, generator=generator)
        return left[:, None] * right

    cases = {
        "wide": (lambda: torch.randn(64, 64, dtype=torch.float64), 2 / (ROWS * COLUMNS), 2.5),
        "row": (row, 2 / COLUMNS, 1.5),
        "column": (lambda: row().T.contiguous(), 2 / ROWS, 1.5),
        "rank one": (rank_one, 2 / ROWS + 2 / COLUMNS + 4 / (ROWS * COLUMNS), 1.6),
    }
    for name, (make, variance, within) in cases.items():
        drawn = ratios(make)
        assert abs(drawn.mean() - 1) < 5 * math.sqrt(variance / 400), name
        assert variance / within < drawn.var() < variance * within, name


def test_two_rows_of_opposite_sign_rarely_have_a_zero_sketch() -> None:
    """Such as the difference of two exchanged rows: it is 0 only if all projections cancel it."""
    vanished = 0
    for first in range(60):
        values = torch.zeros(64, 32, dtype=torch.float64)
        values[first], values[first + 3] = 1.0, -1.0
        vanished += float(whole(values).norm()) == 0
    assert vanished <= 2


def test_a_sketch_of_a_tensor_with_nan_or_infinity_is_not_finite() -> None:
    for nonfinite in (math.nan, math.inf):
        values = torch.ones(30, 30)
        values[4, 5] = nonfinite
        assert not bool(torch.isfinite(whole(values)).any())


def test_sketches_of_uneven_shards_have_different_logical_shapes() -> None:
    """So code that adds the sketches can detect that they do not match."""
    layout = (Shard(0, "tp"),)
    values = torch.randn(5, 40)
    shapes = set()
    for rank in range(2):
        coordinates = {**dict.fromkeys(SIZES, 0), "tp": rank}
        part = extract(values, layout, coordinates, SIZES)
        made = Sketcher(coordinates, SIZES).sketch(part, layout)
        assert made is not None
        shapes.add(made[1])
    assert len(shapes) == 2


def test_a_wrong_layout_an_empty_tensor_or_a_scalar_has_no_sketch() -> None:
    sketcher = Sketcher(dict.fromkeys(SIZES, 0), SIZES)

    assert sketcher.sketch(torch.ones(4, 4), (Shard(5, "tp"),)) is None
    assert sketcher.sketch(torch.ones(0, 4), ()) is None
    assert sketcher.sketch(torch.tensor(1.0), ()) is None
