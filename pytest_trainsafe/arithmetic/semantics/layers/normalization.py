"""Layer and group norms, and their derivatives; torch decomposes an RMS norm on the CPU.

With the normalised input h = (x - mean) * rstd, the derivative by x is
rstd * (g - mean(g) - h * mean(g * h)), where g is the gradient times the weight and the means are
over the normalised elements (Ba, Kiros, Hinton, "Layer Normalization", 2016).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

Maybe = torch.Tensor | None


def _normalized(
    n: Numbers, x: torch.Tensor, dims: Sequence[int], eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The centred and scaled `x`, its mean and the inverse of its deviation, which keep `dims`."""
    mean = n.mean(x, dims, True)
    centred = n.subtract(x, mean)
    rstd = n.rsqrt(n.add(n.mean(n.square(centred), dims, True), eps))
    return n.multiply(centred, rstd), mean, rstd


def _affine(n: Numbers, x: torch.Tensor, weight: Maybe, bias: Maybe) -> torch.Tensor:
    if weight is not None:
        x = n.multiply(x, weight)
    return x if bias is None else n.add(x, bias)


def input_gradient(
    n: Numbers, g: torch.Tensor, h: torch.Tensor, rstd: torch.Tensor, dims: Sequence[int]
) -> torch.Tensor:
    projected = n.multiply(h, n.mean(n.multiply(g, h), dims, True))
    return n.multiply(rstd, n.subtract(n.subtract(g, n.mean(g, dims, True)), projected))


def _last(x: torch.Tensor, count: int) -> tuple[list[int], list[int]]:
    """The last `count` dimensions, and the others."""
    split = x.ndim - count
    return list(range(split, x.ndim)), list(range(split))


def _total(n: Numbers, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return n.sum(x, dims) if dims else x


def _layers(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 2, 3), [3], draw(3), draw(3), 1e-5),
        call(draw(2, 2, 3), [2, 3], None, None, 1e-5),
    ]


@semantics_of("aten.native_layer_norm", examples=_layers)
def layer_norm(
    n: Numbers, x: torch.Tensor, shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[torch.Tensor, ...]:
    h, mean, rstd = _normalized(n, x, _last(x, len(shape))[0], eps)
    return _affine(n, h, weight, bias), mean, rstd


def _layer_gradients(draw: Draw) -> Iterable[Call]:
    for example in _layers(draw):
        x, shape, weight, bias, _ = example.args
        _, mean, rstd = torch.ops.aten.native_layer_norm(*example.args)
        mask = [True, weight is not None, bias is not None]
        yield call(draw(*x.shape), x, shape, mean, rstd, weight, bias, mask)


@semantics_of("aten.native_layer_norm_backward", examples=_layer_gradients)
def layer_norm_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    inner, outer = _last(x, len(shape))
    h = n.multiply(n.subtract(x, mean), rstd)
    g = grad if weight is None else n.multiply(grad, weight)
    return (
        input_gradient(n, g, h, rstd, inner) if output_mask[0] else None,
        _total(n, n.multiply(grad, h), outer) if output_mask[1] else None,
        _total(n, grad, outer) if output_mask[2] else None,
    )


def _groups(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 4, 3), draw(4), draw(4), 2, 4, 3, 2, 1e-5),
        call(draw(2, 4, 3), None, None, 2, 4, 3, 4, 1e-5),
    ]


@semantics_of("aten.native_group_norm", examples=_groups)
def group_norm(
    n: Numbers,
    x: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    rows: int,
    channels: int,
    size: int,
    group: int,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    h, mean, rstd = _normalized(n, x.reshape(rows, group, -1), [2], eps)
    shape = (1, channels, *(1 for _ in x.shape[2:]))
    y = _affine(
        n,
        h.reshape(x.shape),
        None if weight is None else weight.reshape(shape),
        None if bias is None else bias.reshape(shape),
    )
    return y, mean.reshape(rows, group), rstd.reshape(rows, group)


def _group_gradients(draw: Draw) -> Iterable[Call]:
    for example in _groups(draw):
        x, weight, _, rows, channels, size, group, _ = example.args
        _, mean, rstd = torch.ops.aten.native_group_norm(*example.args)
        mask = [True, weight is not None, weight is not None]
        yield call(draw(*x.shape), x, mean, rstd, weight, rows, channels, size, group, mask)


@semantics_of("aten.native_group_norm_backward", examples=_group_gradients)
def group_norm_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: Maybe,
    rows: int,
    channels: int,
    size: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    by_group, by_channel = (rows, group, -1), (rows, channels, -1)
    scale = rstd.reshape(rows, group, 1)
    h = n.multiply(n.subtract(x.reshape(by_group), mean.reshape(rows, group, 1)), scale)
    grad = grad.reshape(by_channel)
    g = grad if weight is None else n.multiply(grad, weight[:, None])
    dx = input_gradient(n, g.reshape(by_group), h, scale, [2])
    return (
        dx.reshape(x.shape) if output_mask[0] else None,
        n.sum(n.multiply(grad, h.reshape(by_channel)), [0, 2]) if output_mask[1] else None,
        n.sum(grad, [0, 2]) if output_mask[2] else None,
    )
