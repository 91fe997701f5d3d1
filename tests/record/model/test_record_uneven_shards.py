"""`ctx.initialize` cuts uneven shards as torch.chunk does, from the shapes that all ranks hold."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.model.initialize import default_std, fill
from pytest_trainsafe.record.model.shard_shapes import Exchange, Shapes, StoreExchange

ROWS = Annotations.of({"parameters": {"weight": {"tp_dim": 0}, "bias": {"tp_dim": 0}}})
COLUMNS = Annotations.of({"parameters": {"weight": {"tp_dim": 1}}})


def told(shapes: Mapping[int, Shapes]) -> Exchange:
    """An exchange in which the other ranks hold these shapes."""
    return lambda own, ranks: {rank: shapes[rank] for rank in ranks}


def parts(lengths: list[int], dim: int, annotations: Annotations) -> list[nn.Linear]:
    """What the ranks of tp hold of a weight of 11 rows or columns, cut into `lengths`."""
    point = Point.of(tp=len(lengths))
    layers = [nn.Linear(*((4, n) if dim == 0 else (n, 4))) for n in lengths]
    shapes = {r: {n: tuple(p.shape) for n, p in m.named_parameters()} for r, m in enumerate(layers)}
    for rank, layer in enumerate(layers):
        fill(layer, point, point.coordinates(rank), 0, default_std, annotations, told(shapes))
    return layers


def whole(rows: int, columns: int) -> nn.Linear:
    layer = nn.Linear(columns, rows)
    fill(layer, Point.of(), Point.of().coordinates(0), 0, default_std, Annotations.empty())
    return layer


@pytest.mark.parametrize("lengths", [[6, 5], [4, 4, 3], [3, 3, 3, 2]])
def test_rows_are_cut_as_torch_chunk_cuts_them(lengths: list[int]) -> None:
    due = whole(11, 4)
    found = parts(lengths, 0, ROWS)
    for layer, weight, bias in zip(
        found, due.weight.chunk(len(lengths)), due.bias.chunk(len(lengths)), strict=True
    ):
        assert torch.equal(layer.weight, weight)
        assert torch.equal(layer.bias, bias)


def test_columns_are_cut_as_torch_chunk_cuts_them() -> None:
    due = whole(4, 11).weight.chunk(2, 1)
    first, second = parts([6, 5], 1, COLUMNS)
    assert torch.equal(first.weight, due[0])
    assert torch.equal(second.weight, due[1])


def test_shards_of_one_length_need_no_other_rank() -> None:
    layer, point = nn.Linear(4, 6), Point.of(tp=2)
    fill(layer, point, point.coordinates(1), 0, default_std, ROWS)
    assert torch.equal(layer.weight, whole(12, 4).weight[6:])


@pytest.mark.parametrize("lengths", [[5, 6], [8, 3]])
def test_shards_of_other_lengths_are_refused_with_both_cuts(lengths: list[int]) -> None:
    with pytest.raises(ProgramError) as error:
        parts(lengths, 0, ROWS)
    text = str(error.value)
    assert f"weight with the shapes [{lengths[0]}, 4], [{lengths[1]}, 4] on ranks 0, 1" in text
    assert "a tensor of shape [11, 4] is cut into [6, 4], [5, 4]" in text


def test_nothing_is_asked_of_other_ranks_without_shards() -> None:
    def exchange(own: Shapes, ranks: frozenset[int]) -> Mapping[int, Shapes]:
        raise AssertionError(own)

    layer, point = nn.Linear(4, 6), Point.of(tp=2)
    fill(layer, point, point.coordinates(1), 0, default_std, Annotations.empty(), exchange)
    at = Point.of(dp=2)
    fill(layer, at, at.coordinates(1), 0, default_std, ROWS, exchange)


def test_without_torch_distributed_no_shapes_are_exchanged() -> None:
    assert StoreExchange(0)({"weight": (6, 4)}, frozenset({1})) == {}
