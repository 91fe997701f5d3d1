"""The zig-zag order of sequences over cp: the part of a rank, and the order of the whole."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.indices import index_arrays
from pytest_trainsafe.core.layout import ZigZag
from pytest_trainsafe.reference_models.parallel.axes import Axis
from pytest_trainsafe.reference_models.parallel.context.zigzag import put_in_order, take_part


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_concatenated_parts_of_all_ranks_can_be_put_in_the_original_order(ranks) -> None:
    whole = torch.arange(2 * 24 * 3).view(2, 24, 3)

    parts = torch.cat([take_part(whole, Axis(ranks, rank)) for rank in range(ranks)], dim=1)

    assert torch.equal(put_in_order(parts, Axis(ranks)), whole)


def test_a_ranks_part_has_the_indices_of_the_zigzag_layout() -> None:
    for rank in range(4):
        held = take_part(torch.arange(16), Axis(4, rank), dim=0)
        (expected,) = index_arrays((ZigZag(0, "cp"),), {"cp": rank}, {"cp": 4}, (16,))
        assert held.tolist() == expected.tolist()
