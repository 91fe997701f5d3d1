"""Bags of embeddings: sums, means and maxima of the rows that each bag names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pytest_trainsafe.arithmetic.errors import ExactError
from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

_MEAN, _MAX = 1, 2


def _bags(draw: Draw) -> Iterable[Call]:
    indices, offsets = torch.tensor([1, 0, 3, 3, 2]), torch.tensor([0, 2])
    return [
        call(draw(5, 3), indices, offsets, False, 0, False, draw(5)),
        *(call(draw(5, 3), indices, offsets, False, mode) for mode in (_MEAN, _MAX)),
        call(draw(5, 3), indices, offsets, False, _MEAN, False, None, False, 3),
    ]


@semantics_of("aten._embedding_bag", "aten._embedding_bag_forward_only", examples=_bags)
def embedding_bag(
    n: Numbers,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, ...]:
    """The bag of each index, the sizes of bags and the rows of maxima are torch's own."""

    def native(values: torch.Tensor) -> Any:
        return torch.ops.aten._embedding_bag(
            values, indices, offsets, False, mode, False, None, include_last_offset, padding_idx
        )

    output, bags, sizes, largest = native(torch.zeros_like(weight))
    if mode == _MAX:
        largest = n.decide("embedding_bag", lambda each: native(each)[3], weight)
        rows = weight.gather(0, largest.clamp(min=0))
        return n.where((sizes > 0)[:, None], rows, 0), bags, sizes, largest
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = n.multiply(rows, per_sample_weights[:, None])
    counted = indices != padding_idx
    where = bags[counted]
    total = n.linear(lambda a, b: a.index_add(0, where, b), torch.zeros_like(output), rows[counted])
    if mode == _MEAN:
        total = n.divide(total, sizes.clamp(min=1)[:, None])
    return total, bags, sizes, largest


def _gradients(draw: Draw) -> Iterable[Call]:
    for example in _bags(draw):
        weight, indices, _, _, mode, *rest = example.args
        _, bags, sizes, largest = torch.ops.aten._embedding_bag(*example.args)
        samples, padding = (rest[1] if rest else None), (rest[3] if len(rest) > 2 else -1)
        options = (weight.shape[0], False, mode, samples, padding)
        yield call(draw(2, 3), indices, bags, sizes, largest, *options)


@semantics_of("aten._embedding_bag_dense_backward", examples=_gradients)
def embedding_bag_backward(
    n: Numbers,
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    zeros = grad.new_zeros(num_weights, grad.shape[1])
    if mode == _MAX:
        filled = bag_size > 0
        places = maximum_indices[filled]
        return n.linear(lambda a, b: a.scatter_add(0, places, b), zeros, grad[filled])
    rows = grad[offset2bag]
    if mode == _MEAN:
        rows = n.divide(rows, bag_size[offset2bag][:, None])
    if per_sample_weights is not None:
        rows = n.multiply(rows, per_sample_weights[:, None])
    if scale_grad_by_freq:
        rows = n.divide(rows, torch.bincount(indices, minlength=num_weights)[indices][:, None])
    counted = indices != padding_idx
    where = indices[counted]
    return n.linear(lambda a, b: a.index_add(0, where, b), zeros, rows[counted])


def _full_gradients(draw: Draw) -> Iterable[Call]:
    offsets = torch.tensor([0, 2])
    for example in _gradients(draw):
        grad, indices, *sizes, count, scale, mode, samples, padding = example.args
        yield call(grad, indices, offsets, *sizes, count, scale, mode, False, samples, padding)


@semantics_of("aten._embedding_bag_backward", examples=_full_gradients)
def embedding_bag_full_backward(
    n: Numbers,
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    if sparse:
        raise ExactError(
            "a sparse gradient has no semantics for exact numbers; use EmbeddingBag(sparse=False)"
        )
    return embedding_bag_backward(
        n,
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )
