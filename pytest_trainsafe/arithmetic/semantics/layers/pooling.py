"""Pooling over two dimensions: averages of windows, and maxima chosen by decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from pytest_trainsafe.arithmetic.errors import ExactError
from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.semantics.layers.convolutions import many, padded, slices
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

Sizes = Sequence[int]
Window = tuple[slice | int, ...]


def _pools(draw: Draw) -> Iterable[Call]:
    return [call(draw(1, 2, 4, 5), [2, 3]), call(draw(2, 1, 5, 4), [3], [2], [1])]


@semantics_of("aten.max_pool2d_with_indices", examples=_pools)
def max_pool2d(n: Numbers, x: torch.Tensor, *options: object) -> tuple[torch.Tensor, torch.Tensor]:
    """An index is the place of a window's maximum in the flattened plane."""
    pool = torch.ops.aten.max_pool2d_with_indices
    places: torch.Tensor = n.decide("max_pool2d", lambda each: pool(each, *options)[1], x)
    return x.flatten(-2).gather(-1, places.flatten(-2)).view_as(places), places


def _max_gradients(draw: Draw) -> Iterable[Call]:
    for example in _pools(draw):
        result, places = torch.ops.aten.max_pool2d_with_indices(*example.args)
        x, kernel, *rest = example.args
        stride, padding = rest if rest else ([], [0])
        yield call(draw(*result.shape), x, kernel, stride, padding, [1], False, places)


@semantics_of("aten.max_pool2d_with_indices_backward", examples=_max_gradients)
def max_pool2d_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: torch.Tensor,
) -> torch.Tensor:
    index = indices.flatten(-2)
    flat = n.linear(
        lambda a, b: a.scatter_add(-1, index, b), torch.zeros_like(x).flatten(-2), grad.flatten(-2)
    )
    return flat.view_as(x)


def _averages(draw: Draw) -> Iterable[Call]:
    return [
        *_pools(draw),
        call(draw(2, 1, 5, 4), [3], [2], [1], False, False),
        call(draw(1, 1, 4, 4), [2], [2], [0], False, True, 3),
    ]


def _windows(
    shape: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes
) -> tuple[list[int], list[Window]]:
    """The spatial sizes of the result, and the slices of the padded input for each offset."""
    outputs = [
        (size + 2 * pad - wide) // step + 1
        for size, wide, step, pad in zip(shape[-2:], kernel, stride, padding, strict=True)
    ]
    return outputs, [part for _, part in slices(kernel, outputs, stride, [1, 1])]


def _divisors(
    x: torch.Tensor,
    kernel: Sizes,
    padding: Sizes,
    parts: list[Window],
    inside: bool,
    fixed: int | None,
) -> torch.Tensor | int:
    """How many elements each average is of; those of the padding count unless `inside`."""
    if fixed is not None:
        return fixed
    if not inside:
        return math.prod(kernel)
    ones = padded(torch.ones_like(x, dtype=torch.int64), padding)
    return torch.stack([ones[part] for part in parts]).sum(0)


def _options(
    kernel: Sizes, stride: Sizes, padding: Sizes, ceil_mode: bool
) -> tuple[list[int], list[int], list[int]]:
    if ceil_mode:
        raise ExactError(
            "avg_pool2d with ceil_mode=True has no semantics for exact numbers; pad the input"
        )
    return many(kernel, 2), many(stride or kernel, 2), many(padding, 2)


@semantics_of("aten.avg_pool2d", examples=_averages)
def avg_pool2d(
    n: Numbers,
    x: torch.Tensor,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> torch.Tensor:
    kernel, stride, padding = _options(kernel, stride, padding, ceil_mode)
    _, parts = _windows(x.shape, kernel, stride, padding)
    total = n.linear(
        lambda each: torch.stack([each[part] for part in parts]).sum(0), padded(x, padding)
    )
    inside = not count_include_pad
    return n.divide(total, _divisors(x, kernel, padding, parts, inside, divisor_override))


def _average_gradients(draw: Draw) -> Iterable[Call]:
    for example in _averages(draw):
        result = torch.ops.aten.avg_pool2d(*example.args)
        x, kernel, *rest = example.args
        rest = [*rest, *([], [0], False, True, None)[len(rest) :]]
        yield call(draw(*result.shape), x, kernel, *rest)


@semantics_of("aten.avg_pool2d_backward", examples=_average_gradients)
def avg_pool2d_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> torch.Tensor:
    kernel, stride, padding = _options(kernel, stride, padding, ceil_mode)
    _, parts = _windows(x.shape, kernel, stride, padding)
    inside = not count_include_pad
    share = n.divide(grad, _divisors(x, kernel, padding, parts, inside, divisor_override))
    result = padded(torch.zeros_like(x), padding)
    for part in parts:
        result[part] = n.add(result[part], share)
    return padded(result, padding, back=True)


def _bins(shape: Sizes, outputs: Sizes) -> Iterator[tuple[Any, Any]]:
    """For each element of an adaptive average, its place and the window that it is of."""
    for row in range(outputs[0]):
        for column in range(outputs[1]):
            window = (
                slice(index * size // count, -(-(index + 1) * size // count))
                for index, size, count in zip((row, column), shape[-2:], outputs, strict=True)
            )
            yield (..., row, column), (..., *window)


@semantics_of(
    "aten._adaptive_avg_pool2d",
    examples=lambda draw: [call(draw(1, 2, 4, 4), [2, 2]), call(draw(2, 1, 5, 3), [3, 2])],
)
def adaptive_avg_pool2d(n: Numbers, x: torch.Tensor, output_size: Sizes) -> torch.Tensor:
    result = x.new_empty([*x.shape[:-2], *output_size])
    for place, window in _bins(x.shape, output_size):
        result[place] = n.mean(x[window], [-2, -1])
    return result


@semantics_of(
    "aten._adaptive_avg_pool2d_backward",
    examples=lambda draw: [
        call(draw(1, 2, 2, 2), draw(1, 2, 4, 4)),
        call(draw(2, 1, 3, 2), draw(2, 1, 5, 3)),
    ],
)
def adaptive_avg_pool2d_backward(n: Numbers, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    result = torch.zeros_like(x)
    for place, window in _bins(x.shape, grad.shape[-2:]):
        part = result[window]
        share = n.divide(grad[place], part.shape[-2] * part.shape[-1])
        result[window] = n.add(part, share[..., None, None])
    return result
