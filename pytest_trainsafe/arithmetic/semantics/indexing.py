"""Operators that write constants to places, or add up what falls on one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from pytest_trainsafe.arithmetic.errors import ExactError
from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.examples import none
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

Indices = Sequence[torch.Tensor | None]


@semantics_of(
    "aten.where",
    examples=lambda draw: [
        call(draw.mask(2, 3), draw(2, 3), draw(3)),
        call(draw.mask(2, 3), draw(2, 3), -1.5),
        call(draw.mask(2, 3), 0.25, draw(2, 3)),
    ],
)
def where(n: Numbers, mask: torch.Tensor, x: Value, other: Value) -> torch.Tensor:
    return n.where(mask, x, other)


@semantics_of(
    "aten.masked_fill",
    examples=lambda draw: [
        call(draw(2, 3), draw.mask(2, 3), -1.5),
        call(draw(2, 3), draw.mask(3), draw()),
    ],
)
def masked_fill(n: Numbers, x: torch.Tensor, mask: torch.Tensor, value: Value) -> torch.Tensor:
    return n.where(mask, value, x)


@semantics_of(
    "aten.index_fill",
    examples=lambda draw: [
        call(draw(4, 2), 0, torch.tensor([1, 3]), 0.25),
        call(draw(4, 3), 1, torch.tensor([2]), draw()),
    ],
)
def index_fill(
    n: Numbers, x: torch.Tensor, dim: int, index: torch.Tensor, value: Value
) -> torch.Tensor:
    return x.index_fill(dim, index, n.lift(value))


def _scatters(draw: Draw) -> Iterable[Call]:
    index = torch.tensor([[0, 2], [3, 1]])
    return [call(draw(2, 4), 1, index, draw(2, 2)), call(draw(2, 4), 1, index, 1.5)]


@semantics_of("aten.scatter", examples=_scatters)
def scatter(n: Numbers, x: torch.Tensor, dim: int, index: torch.Tensor, src: Value) -> torch.Tensor:
    if not isinstance(src, torch.Tensor):
        src = n.lift(src).expand(index.shape)
    return x.scatter(dim, index, n.lift(src))


@semantics_of(
    "aten.scatter_add",
    examples=lambda draw: [call(draw(2, 4), 1, torch.tensor([[0, 0], [3, 1]]), draw(2, 2))],
)
def scatter_add(
    n: Numbers, x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> torch.Tensor:
    return n.linear(lambda a, b: a.scatter_add(dim, index, b), x, src)


@semantics_of(
    "aten.scatter_reduce",
    examples=lambda draw: [
        call(draw(2, 4), 1, torch.tensor([[0, 0], [3, 1]]), draw(2, 2), "sum"),
        call(draw(2, 4), 1, torch.tensor([[0, 0], [3, 1]]), draw(2, 2), "sum", include_self=False),
    ],
)
def scatter_reduce(
    n: Numbers,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    include_self: bool = True,
) -> torch.Tensor:
    if reduce != "sum":
        raise ExactError(
            f"scatter_reduce by {reduce!r} has no semantics for exact numbers; 'sum' has"
        )
    if not include_self:
        x = x.scatter(dim, index, torch.zeros_like(src))
    return scatter_add(n, x, dim, index, src)


def _additions(draw: Draw) -> Iterable[Call]:
    index = torch.tensor([2, 0, 2])
    return [
        call(draw(4, 2), 0, index, draw(3, 2)),
        call(draw(2, 4), 1, index, draw(2, 3), alpha=-0.5),
    ]


@semantics_of("aten.index_add", examples=_additions)
def index_add(
    n: Numbers,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    alpha: Value = 1,
) -> torch.Tensor:
    source = n.lift(source if alpha == 1 else n.multiply(source, alpha))
    return n.linear(lambda a, b: a.index_add(dim, index, b), x, source)


def _puts(draw: Draw) -> Iterable[Call]:
    index = torch.tensor([2, 0, 2])
    return [
        call(draw(4, 2), [torch.tensor([2, 0])], draw(2, 2)),
        call(draw(4, 2), [index], draw(3, 2), True),
        call(draw(2, 4), [None, index], draw(2, 3), True),
        call(draw(4, 2), [torch.tensor([True, False, True, False])], draw()),
    ]


@semantics_of("aten.index_put", "aten._unsafe_index_put", examples=_puts)
def index_put(
    n: Numbers, x: torch.Tensor, indices: Indices, values: Value, accumulate: bool = False
) -> torch.Tensor:
    put = torch.ops.aten.index_put
    if accumulate:
        return n.linear(lambda a, b: put(a, indices, b, True), x, values)
    result: torch.Tensor = put(x, indices, n.lift(values))
    return result


@semantics_of("aten._index_put_impl_", examples=none)
def index_put_in_place(
    n: Numbers,
    x: torch.Tensor,
    indices: Indices,
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    return x.copy_(index_put(n, x, indices, values, accumulate))


@semantics_of(
    "aten.constant_pad_nd",
    examples=lambda draw: [call(draw(2, 3), [1, 2], 0.5), call(draw(2, 3), [0, -1, 1, 0])],
)
def constant_pad(n: Numbers, x: torch.Tensor, pad: Sequence[int], value: Value = 0) -> torch.Tensor:
    """The value is written to where a padded mask of ones has zeros."""
    padded: torch.Tensor = torch.ops.aten.constant_pad_nd(x, pad, 0)
    inside = torch.ops.aten.constant_pad_nd(torch.ones_like(x, dtype=torch.int64), pad, 0)
    return n.where(inside == 1, padded, value)


def _embeddings(draw: Draw) -> Iterable[Call]:
    index = torch.tensor([[1, 0], [1, 3]])
    return [
        call(draw(2, 2, 3), index, 4, -1, False),
        call(draw(2, 2, 3), index, 4, 3, False),
        call(draw(2, 2, 3), index, 4, -1, True),
    ]


@semantics_of("aten.embedding_dense_backward", examples=_embeddings)
def embedding_backward(
    n: Numbers,
    grad: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> torch.Tensor:
    rows, index = grad.reshape(-1, grad.shape[-1]), indices.reshape(-1)
    if scale_grad_by_freq:
        counts = torch.bincount(index, minlength=num_weights)
        rows = n.divide(rows, counts[index][:, None])
    if padding_idx >= 0:
        rows, index = rows[index != padding_idx], index[index != padding_idx]
    zeros = grad.new_zeros(num_weights, grad.shape[-1])
    return n.linear(lambda a, b: a.index_add(0, index, b), zeros, rows)


@semantics_of(
    "aten.unfold_backward",
    examples=lambda draw: [call(draw(2, 3, 3), [2, 5], 1, 3, 1)],
)
def unfold_backward(
    n: Numbers, grad: torch.Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> torch.Tensor:
    """Windows that overlap add up; `grad` has the places of a window in its last dimension."""
    places = torch.arange(input_sizes[dim]).unfold(0, size, step)
    moved = grad.movedim(dim, -2).flatten(-2)
    shape = [*moved.shape[:-1], input_sizes[dim]]
    index = places.reshape(-1)
    summed = n.linear(lambda a, b: a.index_add(a.ndim - 1, index, b), grad.new_zeros(shape), moved)
    return summed.movedim(-1, dim)
