"""`infer` finds layouts from the values of the ranks' parts, and none from constant values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Layout, Partial, Shard, ZigZag
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.declarations.infer import Inferred, Sample, infer, infer_all

POINT = Point.of(tp=2, cp=2)
WHOLE = torch.randn(4, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

Change = Callable[[torch.Tensor, dict[str, int]], torch.Tensor]


def terms(layout: Layout, at: dict[str, int], point: Point) -> torch.Tensor | float:
    """The share of every element that a rank's term has; shares are drawn at random."""
    share: torch.Tensor | float = 1.0
    for placement in layout:
        if isinstance(placement, Partial):
            ranks = point.size(placement.axis)
            seed = torch.Generator().manual_seed(len(placement.axis))
            drawn = torch.rand(ranks, *WHOLE.shape, generator=seed, dtype=torch.float64)
            part = (drawn / drawn.sum(0))[at[placement.axis]]
            share = share * part * (ranks if placement.op == "avg" else 1)
    return share


def sample(
    layout: Layout,
    whole: torch.Tensor = WHOLE,
    point: Point = POINT,
    change: Change = lambda part, at: part,
    known: Layout = (),
) -> Sample:
    """The parts that ranks hold of a tensor with `layout`, of which `known` is declared."""
    cuts = tuple(placement for placement in layout if not isinstance(placement, Partial))
    parts = []
    for rank in range(point.world_size):
        at = point.coordinates(rank)
        values = whole * terms(layout, at, point) if len(cuts) < len(layout) else whole
        part = extract(values, cuts, at, point.sizes).clone()
        parts.append(Part(rank, at, change(part, at), known))

    def ratio(value: torch.Tensor) -> float:
        error, size = (float(t.to(torch.complex128).norm()) for t in (value - whole, whole))
        return error / (1e-13 * size or 1e-300) if error else 0.0

    return Sample(parts, whole, ratio)


def of(inferred: Inferred) -> list[Layout]:
    return inferred.confirmed()


@pytest.mark.parametrize(
    "layout",
    [
        (),
        (Shard(1, "cp"),),
        (ZigZag(1, "cp"),),
        (Shard(0, "tp"),),
        (ZigZag(1, "cp"), Shard(2, "tp")),
        (ZigZag(1, "cp"), Shard(1, "tp")),
        (Shard(1, "cp"), Shard(1, "tp")),
        (ZigZag(1, "cp"), Shard(2, "tp", (8, 8, 8))),
        (ZigZag(1, "cp"), Shard(2, "tp", (12, 4, 8))),
        (Shard(2, "tp", (20, 4)),),
        (Partial("cp"),),
        (Partial("cp", "avg"),),
        (Partial("tp"),),
        (ZigZag(1, "cp"), Partial("tp")),
        (Partial("cp"), Shard(2, "tp")),
        (Partial("cp"), Partial("tp")),
    ],
    ids=str,
)
def test_every_layout_is_inferred_unambiguously(layout: Layout) -> None:
    assert of(infer(sample(layout), POINT.sizes)) == [layout]


def test_a_layout_of_blocks_is_inferred_on_four_ranks() -> None:
    point = Point.of(tp=4)
    layout = (Shard(2, "tp", (16, 4, 4)),)
    assert of(infer(sample(layout, point=point), point.sizes)) == [layout]


def test_an_uneven_shard_is_inferred() -> None:
    point, whole = Point.of(tp=2), torch.randn(5, 3, dtype=torch.float64)
    assert of(infer(sample((Shard(0, "tp"),), whole, point), point.sizes)) == [(Shard(0, "tp"),)]


@pytest.mark.parametrize("factor", [1, 1 + 2j], ids=["integers", "complex"])
def test_layouts_of_integer_and_complex_tensors_are_inferred(factor: complex) -> None:
    values = torch.arange(24) * factor
    whole, layout = values.reshape(4, 6), (Shard(1, "tp"),)
    assert of(infer(sample(layout, whole), POINT.sizes)) == [layout]


def test_declared_placements_are_kept_and_only_the_others_are_inferred() -> None:
    found = infer(sample((ZigZag(1, "cp"), Shard(2, "tp")), known=(Shard(2, "tp"),)), POINT.sizes)
    assert of(found) == [(ZigZag(1, "cp"), Shard(2, "tp"))]
    wrong = infer(sample((ZigZag(1, "cp"), Shard(2, "tp")), known=(Shard(1, "tp"),)), POINT.sizes)
    assert wrong.explained == []


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_values_confirm_no_layout(value: float) -> None:
    whole = torch.full((4, 16, 24), value, dtype=torch.float64)
    found = infer(sample((ZigZag(1, "cp"), Shard(2, "tp")), whole), POINT.sizes)
    assert found.explained
    assert of(found) == []


def test_one_sample_of_varied_values_confirms_a_layout() -> None:
    layout = (ZigZag(1, "cp"), Shard(2, "tp"))
    zeros = sample(layout, torch.zeros_like(WHOLE))
    assert of(infer_all([zeros, sample(layout)], POINT.sizes)) == [layout]
    assert of(infer_all([zeros, zeros], POINT.sizes)) == []


def test_samples_with_different_layouts_are_not_explained() -> None:
    one, other = sample((Shard(1, "cp"),)), sample((ZigZag(1, "cp"),))
    assert infer_all([one, other], POINT.sizes).explained == []


def test_a_wrong_factor_is_not_inferred_as_a_partial_sum() -> None:
    """Half of the value on both ranks adds up to the reference, but the parts are equal."""
    found = infer(sample((), change=lambda part, at: part / 2), POINT.sizes)
    assert of(found) == []


def test_the_value_on_one_rank_and_zeros_on_the_other_are_not_inferred_as_a_partial_sum() -> None:
    found = infer(sample((), change=lambda part, at: part * (at["tp"] == 0)), POINT.sizes)
    assert of(found) == []


def test_wrong_values_have_no_layout_but_a_nearest_one() -> None:
    layout = (ZigZag(1, "cp"), Shard(2, "tp"))

    def half_wrong(part: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        return part * 1.5 if at["tp"] else part

    found = infer(sample(layout, change=half_wrong), POINT.sizes)
    assert found.explained == []
    assert found.nearest == layout
    right = WHOLE[..., 12:].norm() / WHOLE.norm()
    assert found.left == pytest.approx(0.5 * float(right))


def test_differing_replicas_have_no_layout_but_a_nearest_one() -> None:
    """The first rank holds the reference, and the difference of the other rank is reported."""

    def other(part: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        return part + 1 if at["tp"] else part

    found = infer(sample((ZigZag(1, "cp"),), change=other), POINT.sizes)
    assert found.explained == []
    assert found.nearest == (ZigZag(1, "cp"),)
    assert (found.left, "replicas over tp differ" in found.trouble) == (0.0, True)


def test_exchanged_shards_have_no_layout() -> None:
    point = Point.of(tp=2)
    exchanged = sample((Shard(2, "tp"),), WHOLE.roll(12, 2), point)
    found = infer(Sample(exchanged.parts, WHOLE, sample(()).ratio), point.sizes)
    assert found.explained == []


def test_parts_of_impossible_shapes_have_no_nearest_layout() -> None:
    found = infer(sample((), change=lambda part, at: part[:, :5]), POINT.sizes)
    assert (found.explained, found.nearest) == ([], None)
