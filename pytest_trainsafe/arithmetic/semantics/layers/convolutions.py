"""Convolution, as sums over the offsets of the kernel.

For each offset, the input's elements below it are a strided slice; a convolution is the sum of
matrix products of these slices, and its derivatives are the transposed sums (Dumoulin, Visin,
"A guide to convolution arithmetic for deep learning", 2016).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

Sizes = Sequence[int]
Maybe = torch.Tensor | None
Places = tuple[slice | int, ...]


def many(sizes: Sizes, count: int) -> list[int]:
    return list(sizes) * count if len(sizes) == 1 else list(sizes)


def slices(
    kernel: Sizes, outputs: Sizes, stride: Sizes, dilation: Sizes
) -> Iterator[tuple[tuple[int, ...], Places]]:
    """Each offset of the kernel, and the slices of the padded input that it meets."""
    for offset in itertools.product(*map(range, kernel)):
        parts = [
            slice(at * wide, at * wide + (count - 1) * step + 1, step)
            for at, wide, count, step in zip(offset, dilation, outputs, stride, strict=True)
        ]
        yield offset, (slice(None), slice(None), *parts)


def padded(x: torch.Tensor, padding: Sizes, back: bool = False) -> torch.Tensor:
    """`x` with zeros around its spatial dimensions, or without them again."""
    both = [each for size in reversed(padding) for each in (size, size)]
    result: torch.Tensor = torch.ops.aten.constant_pad_nd(
        x, [-each for each in both] if back else both, 0
    )
    return result


def _grouped(x: torch.Tensor, groups: int) -> torch.Tensor:
    """[batch, channels, ...] as [groups, channels of a group, batch * places]."""
    batch, channels = x.shape[:2]
    return (
        x.reshape(batch, groups, channels // groups, -1)
        .permute(1, 2, 0, 3)
        .reshape(groups, channels // groups, -1)
    )


def _ungrouped(x: torch.Tensor, batch: int, places: Sizes) -> torch.Tensor:
    groups, channels, _ = x.shape
    return (
        x.reshape(groups, channels, batch, -1)
        .permute(2, 0, 1, 3)
        .reshape(batch, groups * channels, *places)
    )


def _kernel(weight: torch.Tensor, offset: tuple[int, ...], groups: int) -> torch.Tensor:
    """The matrix of one offset, [groups, outputs of a group, inputs of a group]."""
    places: Places = (slice(None), slice(None), *offset)
    matrix = weight[places]
    return matrix.reshape(groups, -1, matrix.shape[1])


def _forward(
    n: Numbers, x: torch.Tensor, weight: torch.Tensor, stride: Sizes, padding: Sizes,
    dilation: Sizes, groups: int,
) -> torch.Tensor:  # fmt: skip
    kernel = weight.shape[2:]
    x = padded(x, padding)
    outputs = [
        (size - wide * (count - 1) - 1) // step + 1
        for size, wide, count, step in zip(x.shape[2:], dilation, kernel, stride, strict=True)
    ]
    total: torch.Tensor | None = None
    for offset, part in slices(kernel, outputs, stride, dilation):
        term = n.matmul(_kernel(weight, offset, groups), _grouped(x[part], groups))
        total = term if total is None else n.add(total, term)
    assert total is not None
    return _ungrouped(total, x.shape[0], outputs)


def _to_input(
    n: Numbers, grad: torch.Tensor, weight: torch.Tensor, shape: Sizes, stride: Sizes,
    padding: Sizes, dilation: Sizes, groups: int,
) -> torch.Tensor:  # fmt: skip
    """The derivative by an input of `shape`; also the forward of a transposed convolution."""
    wide = [size + 2 * pad for size, pad in zip(shape[2:], padding, strict=True)]
    result = grad.new_zeros([*shape[:2], *wide])
    outputs = grad.shape[2:]
    right = _grouped(grad, groups)
    for offset, part in slices(weight.shape[2:], outputs, stride, dilation):
        term = n.matmul(_kernel(weight, offset, groups).transpose(1, 2), right)
        result[part] = n.add(result[part], _ungrouped(term, shape[0], outputs))
    return padded(result, padding, back=True)


def _to_weight(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, shape: Sizes, stride: Sizes,
    padding: Sizes, dilation: Sizes, groups: int,
) -> torch.Tensor:  # fmt: skip
    x, left = padded(x, padding), _grouped(grad, groups)
    result = grad.new_zeros(list(shape))
    for offset, part in slices(shape[2:], grad.shape[2:], stride, dilation):
        matrix = n.matmul(left, _grouped(x[part], groups).transpose(1, 2))
        places: Places = (slice(None), slice(None), *offset)
        result[places] = matrix.reshape(shape[0], shape[1])
    return result


def _convolutions(draw: Draw) -> Iterable[Call]:
    plain = ([1], [0], [1], False, [0], 1)
    return [
        call(draw(2, 3, 5), draw(4, 3, 3), draw(4), *plain),
        call(draw(1, 4, 5, 4), draw(6, 2, 2, 3), None, [2, 1], [1, 1], [1, 2], False, [0, 0], 2),
        call(draw(2, 3, 4), draw(3, 2, 3), draw(2), [2], [1], [1], True, [1], 1),
    ]


@semantics_of("aten.convolution", examples=_convolutions)
def convolution(
    n: Numbers,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Maybe,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> torch.Tensor:
    count = x.ndim - 2
    stride, padding, dilation, output_padding = (
        many(each, count) for each in (stride, padding, dilation, output_padding)
    )
    if transposed:
        places = [
            (x.shape[2 + dim] - 1) * stride[dim] - 2 * padding[dim]
            + dilation[dim] * (weight.shape[2 + dim] - 1) + output_padding[dim] + 1
            for dim in range(count)
        ]  # fmt: skip
        shape = [x.shape[0], weight.shape[1] * groups, *places]
        result = _to_input(n, x, weight, shape, stride, padding, dilation, groups)
    else:
        result = _forward(n, x, weight, stride, padding, dilation, groups)
    return result if bias is None else n.add(result, bias.reshape(-1, *([1] * count)))


def _gradients(draw: Draw) -> Iterable[Call]:
    for example in _convolutions(draw):
        x, weight, bias, *options = example.args
        grad = draw(*torch.ops.aten.convolution(*example.args).shape)
        sizes = None if bias is None else list(bias.shape)
        yield call(grad, x, weight, sizes, *options, [True, True, bias is not None])


@semantics_of("aten.convolution_backward", examples=_gradients)
def convolution_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    count = x.ndim - 2
    stride, padding, dilation = (many(each, count) for each in (stride, padding, dilation))
    dx = dw = None
    if output_mask[0]:
        if transposed:
            dx = _forward(n, grad, weight, stride, padding, dilation, groups)
        else:
            dx = _to_input(n, grad, weight, x.shape, stride, padding, dilation, groups)
    if output_mask[1]:
        small, large = (x, grad) if transposed else (grad, x)
        dw = _to_weight(n, small, large, weight.shape, stride, padding, dilation, groups)
    over = [0, *range(2, grad.ndim)]
    return dx, dw, n.sum(grad, over) if output_mask[2] else None
