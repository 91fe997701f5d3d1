"""A gradient that lacks the micro-batches of other ranks is blamed on the reduction over ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from pytest_trainsafe.core.layout import Layout, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from tests.support.compare.faults import (
    MICROBATCHES,
    like,
    micro_batches,
    reference_tensor,
    wrong_tensor,
)
from tests.support.compare.traces import MICROBATCHES as TRACED
from tests.support.compare.traces import Bench, Record, draw, only

CLEARED = "gradients are cleared, reduced or used before all micro-batches are added"


def computed(point: Point) -> dict[int, frozenset[int]]:
    """By rank, its micro-batches, if dp ranks take blocks of them."""
    share = MICROBATCHES // point.size("dp")
    blocks = [frozenset(range(n * share, (n + 1) * share)) for n in range(point.size("dp"))]
    return {rank: blocks[point.coordinates(rank)["dp"]] for rank in range(point.world_size)}


def of_ranks(
    point: Point,
    view: Callable[[int], dict[int, float]],
    layout: Layout = (),
    dtype: str = "float32",
) -> WrongTensor:
    """A gradient in which the ranks of a coordinate of dp weight micro-batches as `view` says."""

    def held(reference: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        weights = view(at["dp"])
        terms = micro_batches()
        return sum((w * terms[i] for i, w in weights.items()), torch.zeros_like(reference))

    wrong = wrong_tensor(
        reference_tensor(), held, layout, dtype=dtype, point=point, terms=micro_batches()
    )
    return dataclasses.replace(wrong, computed=computed(point))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("tp", [1, 2])
def test_ranks_that_clip_their_own_sums_miss_an_all_reduce(tp: int, dtype: str) -> None:
    """Each rank divides by another norm, so the ranks' values do not add up to the reference."""
    point = Point.of(tp=tp, dp=2)

    def own(dp: int) -> dict[int, float]:
        return dict.fromkeys(range(3 * dp, 3 * dp + 3), (1.54, 0.8)[dp])

    layout = (Shard(0, "tp"),) if tp > 1 else ()
    found = explain(of_ranks(point, own, layout, dtype))
    assert found is not None
    assert (found.name, found.axis) == ("partial sum", "dp")
    assert found.cause == "an all-reduce over dp is missing for this gradient"
    assert "rank0 of 0, 1 and 2, times 1.54" in found.text


def test_shards_of_each_ranks_own_sum_miss_a_reduce_scatter() -> None:
    point = Point.of(dp=3)
    wrong = of_ranks(point, lambda dp: {2 * dp: 1.0, 2 * dp + 1: 1.0}, (Shard(0, "dp"),))
    found = explain(wrong)
    assert found is not None
    assert (found.name, found.axis) == ("partial sum", "dp")
    assert found.cause == "a reduce-scatter over dp is missing for this gradient"


def test_the_sum_of_one_rank_on_all_ranks_is_blamed_on_the_collective() -> None:
    """As with a broadcast in place of the all-reduce."""
    found = explain(of_ranks(Point.of(dp=2), lambda dp: {0: 1.0, 1: 1.0, 2: 1.0}))
    assert found is not None
    assert (found.name, found.axis) == ("other micro-batches", "dp")
    assert "micro-batches 3, 4, 5 of 6" in found.text
    assert found.text.endswith("all micro-batches of dp rank 1")
    assert found.cause.startswith("the gradients of dp rank 1 are not added over dp")


def test_a_reduction_without_one_of_three_ranks_names_that_rank() -> None:
    found = explain(of_ranks(Point.of(dp=3), lambda dp: dict.fromkeys((0, 1, 2, 3), 1.0)))
    assert found is not None
    assert found.cause.startswith("the gradients of dp rank 2 are not added over dp")


@pytest.mark.parametrize("missing", [{5}, {2, 5}, {0, 1, 5}, {0, 1, 2, 5}])
def test_micro_batches_that_ranks_lose_of_their_own_are_not_blamed_on_the_reduction(
    missing: set[int],
) -> None:
    kept = {index: 1.0 for index in range(MICROBATCHES) if index not in missing}
    found = explain(of_ranks(Point.of(dp=2), lambda dp: kept))
    assert found is not None
    assert (found.name, found.axis, found.cause) == ("other micro-batches", "", CLEARED)


def test_ranks_that_also_lose_micro_batches_of_their_own_do_not_match() -> None:
    found = explain(of_ranks(Point.of(dp=2), lambda dp: {3 * dp: 1.54 - dp, 3 * dp + 1: 1.54 - dp}))
    assert found is None or found.name != "partial sum"


def test_noise_on_the_right_sum_is_not_explained() -> None:
    wrong = of_ranks(Point.of(dp=2), lambda dp: dict.fromkeys(range(MICROBATCHES), 1.0))
    noisy = wrong.value * (1 + 0.3 * like("loud", wrong.value))
    found = explain(dataclasses.replace(wrong, value=noisy))
    assert found is None or found.name not in ("partial sum", "other micro-batches")


def test_the_micro_batches_of_ranks_are_read_from_their_traces(bench: Bench) -> None:
    """The report starts with a gradient that each rank scales by a norm of its own."""

    def own(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        share = TRACED // 2
        numbers = range(at["dp"] * share, (at["dp"] + 1) * share)
        terms = (draw(f"grad {record.id.step} {i} fc1.bias", part.shape) for i in numbers)
        return (sum(terms, torch.zeros_like(part)) * (1.5 - at["dp"])).to(part.dtype)

    rung = bench.rung(Point.of(dp=2), only("main_grad", "fc1.bias", own), dtype="float64")
    first = next(f for f in compare(rung).findings if f.verdict == "fail")
    assert first.where is not None
    assert first.where.path == "fc1.bias"
    assert first.pattern is not None
    assert first.pattern.cause == "an all-reduce over dp is missing for this gradient"


def test_ranks_that_add_their_micro_batches_pass(bench: Bench) -> None:
    assert not compare(bench.rung(Point.of(dp=2), dtype="float64")).failed
