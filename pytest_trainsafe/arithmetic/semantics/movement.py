"""Operators that move, copy or select elements: they run on packed numbers as they are.

Zero is zero in both, so operators that fill with zeros are among them.  A test compares each with
torch on small rationals, as for operators that compute.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_trainsafe.arithmetic.table import Call, Draw, call, moves

moves(
    "aten.clone", "aten.detach", "aten.alias", "aten.t", "aten.zero", "aten.zero_",
    "aten.zeros_like", "aten.lift", "aten.isnan", "aten.isinf", "aten.isposinf", "aten.isneginf",
    examples=lambda draw: [call(draw(2, 3))],
)  # fmt: skip

Make = Callable[[Draw], tuple[object, ...]]


def _each(**makes: Make) -> None:
    """Register operators by name, each with the arguments of one example."""
    for name, make in makes.items():
        moves(f"aten.{name}", examples=_example(make))


def _example(make: Make) -> Callable[[Draw], list[Call]]:
    return lambda draw: [call(*make(draw))]


_index = torch.tensor([2, 0])

_each(
    view=lambda draw: (draw(2, 3), [3, 2]),
    _unsafe_view=lambda draw: (draw(2, 3), [3, 2]),
    _reshape_alias=lambda draw: (draw(2, 3), [3, 2], [2, 1]),
    expand=lambda draw: (draw(2, 1), [2, 3]),
    permute=lambda draw: (draw(2, 3, 4), [2, 0, 1]),
    transpose=lambda draw: (draw(2, 3), 0, 1),
    unsqueeze=lambda draw: (draw(2, 3), 1),
    squeeze=lambda draw: (draw(2, 1, 3), 1),
    slice=lambda draw: (draw(4, 3), 0, 1, 4, 2),
    select=lambda draw: (draw(4, 3), 1, 2),
    diagonal=lambda draw: (draw(3, 3),),
    as_strided=lambda draw: (draw(2, 3), [2, 2], [3, 1], 1),
    unfold=lambda draw: (draw(2, 5), 1, 3, 1),
    split=lambda draw: (draw(4, 3), 2),
    split_with_sizes=lambda draw: (draw(4, 3), [1, 3]),
    split_with_sizes_copy=lambda draw: (draw(4, 3), [1, 3]),
    unsafe_split=lambda draw: (draw(4, 3), 2),
    unsafe_split_with_sizes=lambda draw: (draw(4, 3), [1, 3]),
    unbind=lambda draw: (draw(2, 3), 1),
    cat=lambda draw: ([draw(2, 3), draw(1, 3)],),
    _chunk_cat=lambda draw: ([draw(4, 3), draw(2, 3)], 0, 2),
    stack=lambda draw: ([draw(2, 3), draw(2, 3)], 1),
    repeat=lambda draw: (draw(2, 3), [2, 1]),
    flip=lambda draw: (draw(2, 3), [1]),
    roll=lambda draw: (draw(2, 3), [1], [1]),
    tril=lambda draw: (draw(3, 3),),
    triu=lambda draw: (draw(3, 3), 1),
    index=lambda draw: (draw(4, 3), [_index, None]),
    _unsafe_index=lambda draw: (draw(4, 3), [_index, None]),
    index_select=lambda draw: (draw(4, 3), 0, _index),
    index_copy=lambda draw: (draw(4, 3), 0, _index, draw(2, 3)),
    gather=lambda draw: (draw(2, 3), 1, torch.tensor([[2, 0], [1, 1]])),
    take=lambda draw: (draw(2, 3), torch.tensor([4, 0])),
    embedding=lambda draw: (draw(4, 3), torch.tensor([[1, 0], [3, 1]])),
    masked_select=lambda draw: (draw(2, 3), draw.mask(2, 3)),
    masked_scatter=lambda draw: (draw(2, 3), draw.mask(2, 3), draw(2, 3)),
    select_backward=lambda draw: (draw(3), [2, 3], 0, 1),
    slice_backward=lambda draw: (draw(2, 3), [4, 3], 0, 1, 3, 1),
    diagonal_backward=lambda draw: (draw(3), [3, 3], 0, 0, 1),
    slice_scatter=lambda draw: (draw(4, 3), draw(2, 3), 0, 1, 3),
    select_scatter=lambda draw: (draw(4, 3), draw(3), 0, 1),
    diagonal_scatter=lambda draw: (draw(3, 3), draw(3)),
    as_strided_scatter=lambda draw: (draw(2, 3), draw(2, 2), [2, 2], [3, 1], 1),
    pixel_shuffle=lambda draw: (draw(1, 4, 2, 3), 2),
    pixel_unshuffle=lambda draw: (draw(1, 1, 4, 6), 2),
    channel_shuffle=lambda draw: (draw(1, 4, 2, 2), 2),
    rot90=lambda draw: (draw(2, 3), 1, [0, 1]),
    view_copy=lambda draw: (draw(2, 3), [3, 2]),
    expand_copy=lambda draw: (draw(2, 1), [2, 3]),
    diag_embed=lambda draw: (draw(2, 3),),
    set_=lambda draw: (draw(2, 3), draw(3)),
    resize_=lambda draw: (draw(2, 3), [3, 2]),
    is_same_size=lambda draw: (draw(2, 3), draw(3, 2)),
)
