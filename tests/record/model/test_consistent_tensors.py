"""Consistent tensors have the same values on every rank, and the values look random."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Layout, Partial, Placement, Shard, ZigZag
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.model import consistent
from pytest_trainsafe.record.model.consistent import consistent_integers, consistent_tensor

N = 200_000


def test_values_are_the_same_in_every_release() -> None:
    assert consistent_tensor("w", (4,), dtype=torch.float64).tolist() == [
        -2.28125, -0.23828125, 0.09228515625, 0.1044921875
    ]  # fmt: skip
    assert consistent_tensor("", (2, 2), seed=7, std=0.02).tolist() == [
        [0.00421142578125, -0.0206298828125],
        [0.0289306640625, 0.020263671875],
    ]
    assert consistent_integers("t", (6,), 100).tolist() == [28, 31, 96, 61, 74, 6]


def test_values_equal_those_computed_with_python_integers() -> None:
    """The definition, computed with Python integers."""
    import xxhash

    mask = 2**64 - 1
    state = xxhash.xxh3_64_intdigest(b"layer.weight", seed=3)
    got = consistent_tensor("layer.weight", (5,), seed=3, dtype=torch.float64, representable=None)
    for index, value in enumerate(got.tolist()):
        z = (state + (index + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        total = sum((z >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
        assert value == (total - 131070) * (1 / math.sqrt((2**32 - 1) / 3))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.0, 0.1), (0.0, 0.02)])
def test_values_have_the_requested_mean_and_standard_deviation(mean: float, std: float) -> None:
    values = consistent_tensor("a", (N,), mean=mean, std=std, dtype=torch.float64)
    assert abs(values.mean().item() - mean) < 4 * std / math.sqrt(N)
    assert abs(values.std().item() / std - 1) < 4 / math.sqrt(2 * N)
    assert (values - mean).abs().max().item() < 3.48 * std


def test_values_are_uncorrelated_between_keys_seeds_and_neighbours() -> None:
    rows = [consistent_tensor(key, (N,), dtype=torch.float64) for key in ("a", "b", "a.b", "a ")]
    rows.append(consistent_tensor("a", (N,), seed=1, dtype=torch.float64))
    rows += [rows[0].roll(shift) for shift in (1, 2, 64, 1024)]
    correlation = torch.corrcoef(torch.stack(rows)).fill_diagonal_(0)
    assert correlation.abs().max().item() < 4.5 / math.sqrt(N)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_logical_values_are_the_same_in_every_dtype(dtype: torch.dtype) -> None:
    wide = consistent_tensor("a", (1000,), std=0.02, dtype=torch.float64)
    assert torch.equal(consistent_tensor("a", (1000,), std=0.02, dtype=dtype).double(), wide)
    assert wide.unique().numel() > 500


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_distinct_values_differ_and_are_close_to_those_that_may_be_equal(mean: float) -> None:
    given: Any = {"mean": mean, "std": 0.02, "dtype": torch.float64, "representable": None}
    plain, distinct = (consistent_tensor("a", (N,), **given, distinct=d) for d in (False, True))
    assert plain.unique().numel() < distinct.unique().numel() == N
    assert (plain - distinct).abs().max().item() < 0.02 / 10_000
    assert not (distinct * 1024 == (distinct * 1024).round()).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("std", [1.0, 1e-5])
def test_representable_rounds_values_as_the_dtype_does(dtype: torch.dtype, std: float) -> None:
    exact = consistent_tensor("a", (5000,), std=std, dtype=torch.float64, representable=None)
    got = consistent_tensor("a", (5000,), std=std, dtype=torch.float64, representable=dtype)
    if dtype == torch.float16:  # torch converts through float32, and so rounds twice
        expected = torch.from_numpy(exact.numpy().astype(np.float16)).double()
    else:
        expected = exact.to(dtype).double()
    assert torch.equal(got, expected)
    assert torch.equal(got.to(dtype).double(), got)


def test_small_values_round_to_the_subnormals_of_bfloat16() -> None:
    values = np.array([2.0**-133 * 2.5, 2.0**-134, 2.0**-126 * 1.01, -(2.0**-133) * 1.5, 0.0])
    rounded = torch.from_numpy(consistent._round(values.copy(), 8, -133))
    assert torch.equal(rounded, torch.from_numpy(values).to(torch.bfloat16).double())


@st.composite
def shards(draw: st.DrawFn) -> tuple[tuple[int, ...], Layout, Point]:
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    point = Point.of(tp=draw(st.integers(1, 3)), cp=draw(st.integers(1, 3)))
    dims = st.integers(0, len(shape) - 1)
    kinds: list[Placement] = [ZigZag(draw(dims), "cp"), Shard(draw(dims), "cp"), Partial("cp")]
    cp = draw(st.sampled_from(kinds))
    return shape, (cp, Shard(draw(dims), "tp")), point


@given(shards(), st.sampled_from([1, 4, consistent.BLOCK]))
@settings(max_examples=100, deadline=None)
def test_every_shard_equals_its_part_of_the_full_tensor(
    case: tuple[tuple[int, ...], Layout, Point], block: int
) -> None:
    shape, layout, point = case
    full = consistent_tensor("a.b", shape)
    tokens = consistent_integers("t", shape, 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consistent, "BLOCK", block)
        for rank in range(point.world_size):
            where = point.coordinates(rank)
            place: dict[str, Any] = {"layout": layout, "coordinates": where, "sizes": point.sizes}
            expected = extract(full, layout, where, point.sizes)
            assert torch.equal(consistent_tensor("a.b", shape, **place), expected)
            expected = extract(tokens, layout, where, point.sizes)
            assert torch.equal(consistent_integers("t", shape, 1000, **place), expected)


def test_scalar_and_empty_shapes_are_supported() -> None:
    assert consistent_tensor("a", ()).shape == ()
    assert consistent_tensor("a", ()) == consistent_tensor("a", (3,))[0]
    assert consistent_tensor("a", (0, 4)).shape == (0, 4)


def test_consistent_integers_are_uniform() -> None:
    counts = torch.bincount(consistent_integers("t", (N,), 10), minlength=10)
    assert counts.numel() == 10
    assert (counts - N / 10).abs().max().item() < 4.5 * math.sqrt(N * 0.09)
    assert int(consistent_integers("t", (N,), 2**32).max()) >= 2**32 * (1 - 1e-3)
