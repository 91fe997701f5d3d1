"""The zig-zag order, there and back."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.indices import index_arrays
from pytest_trainsafe.core.layout import ZigZag
from pytest_trainsafe.reference_models.parallel.axes import Axis
from pytest_trainsafe.reference_models.parallel.context.zigzag import put_in_order, take_part


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_ranks_parts_put_in_order_are_the_whole(ranks) -> None:
    whole = torch.arange(2 * 24 * 3).view(2, 24, 3)

    parts = torch.cat([take_part(whole, Axis(ranks, rank)) for rank in range(ranks)], dim=1)

    assert torch.equal(put_in_order(parts, Axis(ranks)), whole)


def test_a_rank_holds_what_the_layout_says() -> None:
    for rank in range(4):
        held = take_part(torch.arange(16), Axis(4, rank), dim=0)
        (said,) = index_arrays((ZigZag(0, "cp"),), {"cp": rank}, {"cp": 4}, (16,))
        assert held.tolist() == said.tolist()
