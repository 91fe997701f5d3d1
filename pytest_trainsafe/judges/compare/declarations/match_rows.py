"""Finds the fused blocks of a dimension from the rows that the first rank holds.

A fused projection (queries, keys and values; gate and value) is cut block by block, so the first
rank holds the first rows of every block.  Called by `judges/compare/declarations/infer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.indices import contiguous_ranges, extract
from pytest_trainsafe.core.layout import Layout, Partial, Shard, Sizes


def fused_blocks(
    parts: Sequence[Part], reference: torch.Tensor, layout: Layout, place: int, sizes: Sizes
) -> tuple[int, ...]:
    """The sizes of the blocks within which the placement `layout[place]` cuts its dimension.

    Empty if there is only one block, if rows cannot be distinguished, or if their order fits no
    blocks.  The result is a guess that the caller must verify, because rows are matched by a single
    random projection.
    """
    placement = layout[place]
    assert isinstance(placement, Shard)
    first = next((part for part in parts if part.coordinates[placement.axis] == 0), None)
    if first is None or any(isinstance(p, Partial) for p in layout):
        return ()
    others = (*layout[:place], *layout[place + 1 :])
    if any(getattr(p, "dim", None) == placement.dim for p in others):
        return ()
    whole = extract(reference, others, first.coordinates, sizes)
    held = _positions(first.tensor.to(whole.dtype), whole, placement.dim)
    if held is None:
        return ()
    starts = [start for start, _ in contiguous_ranges(held)]
    lengths = [length for _, length in contiguous_ranges(held)]
    ends = [*starts[1:], whole.shape[placement.dim]]
    blocks = tuple(end - start for start, end in zip(starts, ends, strict=True))
    expected = [-(-block // sizes[placement.axis]) for block in blocks]
    return blocks if len(blocks) > 1 and starts[0] == 0 and lengths == expected else ()


def _positions(part: torch.Tensor, whole: torch.Tensor, dim: int) -> np.ndarray | None:
    """For each row of a part, the index of the same row in the whole tensor.

    None unless the indices increase.
    """
    rows, known = (t.movedim(dim, 0).reshape(t.shape[dim], -1) for t in (part, whole))
    if rows.shape[1] != known.shape[1] or not rows.numel() or whole.is_complex():
        return None
    weights = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0)).double()
    marks, all_marks = (t.double() @ weights for t in (rows, known))
    sorted_marks, order = all_marks.sort()
    after = torch.searchsorted(sorted_marks, marks).clamp(1, len(order) - 1)
    near = torch.stack([after - 1, after])
    nearest = near.gather(0, (sorted_marks[near] - marks).abs().argmin(0, keepdim=True))[0]
    found: np.ndarray = order[nearest].numpy()
    return found if bool((np.diff(found) > 0).all()) else None
