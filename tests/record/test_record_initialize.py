"""`ctx.initialize` gives a rank its part of the logical tensor, from whatever source the layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.align.annotations import Annotations
from pytest_trainsafe.record.initialize import default_std, fill
from pytest_trainsafe.sweep.point import Point

BY_COLUMN: dict[str, Any] = {"parameters": {"weight": {"tp_dim": 1}, "bias": {"tp_dim": 0}}}


def filled(shape: tuple[int, int], rank: int | None, annotations: Annotations) -> nn.Linear:
    """A layer of [out, in] features as a rank of tp=2 holds it; the whole layer for None."""
    layer = nn.Linear(shape[1], shape[0])
    if rank is not None:
        layer.bias = nn.Parameter(torch.empty(2))
    point = Point.of(tp=1 if rank is None else 2)
    fill(layer, point, point.coordinates(rank or 0), 0, default_std, annotations)
    return layer


@pytest.fixture
def whole() -> nn.Linear:
    return filled((4, 6), None, Annotations.empty())


@pytest.mark.parametrize("rank", [0, 1])
def test_parameters_cut_by_annotations_get_their_parts(whole: nn.Linear, rank: int) -> None:
    part = filled((4, 3), rank, Annotations.of(BY_COLUMN))

    assert torch.equal(part.weight, whole.weight.chunk(2, 1)[rank])
    assert torch.equal(part.bias, whole.bias.chunk(2)[rank])


def test_without_annotations_every_rank_holds_the_whole(whole: nn.Linear) -> None:
    first, second = (filled((4, 3), rank, Annotations.empty()) for rank in (0, 1))

    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, whole.weight[:, :3])
