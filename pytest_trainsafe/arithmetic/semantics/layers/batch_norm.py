"""Batch norm: statistics over all dimensions but the channels, and running averages of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.semantics.layers.normalization import Maybe, input_gradient
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def _channels(x: torch.Tensor) -> tuple[list[int], list[int]]:
    """The dimensions of the statistics, and the shape of one number for each channel."""
    dims = [dim for dim in range(x.ndim) if dim != 1]
    return dims, [-1 if dim == 1 else 1 for dim in range(x.ndim)]


def _batches(draw: Draw) -> Iterable[Call]:
    running = draw(3), draw.positive(3)
    return [
        call(draw(2, 3, 2), draw(3), draw(3), *running, False, 0.25, 1e-5),
        call(draw(4, 3), None, None, None, None, True, 0.25, 1e-5),
        call(draw(4, 3, 2), draw(3), draw(3), draw(3), draw.positive(3), True, 0.25, 1e-5),
    ]


@semantics_of("aten.native_batch_norm", examples=_batches)
def batch_norm(
    n: Numbers,
    x: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    *options: torch.Tensor | bool | float | None,
) -> tuple[torch.Tensor, ...]:
    """Running averages are the four to five arguments behind the bias, and written in place."""
    running, (training, momentum, eps) = options[:-3], options[-3:]
    assert isinstance(momentum, float)
    assert isinstance(eps, float)
    mean_before, var_before = running if running else (None, None)
    dims, shape = _channels(x)
    if training:
        mean = n.mean(x, dims)
        var = n.mean(n.square(n.subtract(x, mean.reshape(shape))), dims)
        count = x.numel() // x.shape[1]
        for before, now in (
            (mean_before, mean),
            (var_before, n.multiply(var, n.divide(count, max(count - 1, 1)))),
        ):
            if isinstance(before, torch.Tensor):
                kept = n.multiply(before, n.subtract(1, momentum))
                before.copy_(n.add(kept, n.multiply(now, momentum)))
    else:
        assert isinstance(mean_before, torch.Tensor)
        assert isinstance(var_before, torch.Tensor)
        mean, var = mean_before, var_before
    rstd = n.rsqrt(n.add(var, eps))
    y = n.multiply(n.subtract(x, mean.reshape(shape)), rstd.reshape(shape))
    if weight is not None:
        y = n.multiply(y, weight.reshape(shape))
    if bias is not None:
        y = n.add(y, bias.reshape(shape))
    return (y, mean, rstd) if training else (y, x.new_empty(0), x.new_empty(0))


def _legit(draw: Draw) -> Iterable[Call]:
    running = draw(3), draw.positive(3)
    return [
        call(draw(2, 3, 2), draw(3), draw(3), *running, False, 0.25, 1e-5),
        call(draw(4, 3, 2), draw(3), draw(3), draw(3), draw.positive(3), True, 0.25, 1e-5),
        call(draw(4, 3), None, None, True, 0.25, 1e-5),
    ]


semantics_of("aten._native_batch_norm_legit", examples=_legit)(batch_norm)


def _gradients(draw: Draw) -> Iterable[Call]:
    for example in _batches(draw):
        x, weight, _, mean, var, training, momentum, eps = example.args
        _, saved_mean, saved_rstd = torch.ops.aten.native_batch_norm(
            x, weight, None, None, None, True, momentum, eps
        )
        saved = (saved_mean, saved_rstd) if training else (None, None)
        mask = [True, weight is not None, weight is not None]
        yield call(draw(*x.shape), x, weight, mean, var, *saved, training, eps, mask)


@semantics_of("aten.native_batch_norm_backward", examples=_gradients)
def batch_norm_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_rstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    dims, shape = _channels(x)
    if train:
        assert save_mean is not None
        assert save_rstd is not None
        mean, rstd = save_mean, save_rstd
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = running_mean, n.rsqrt(n.add(running_var, eps))
    rstd = rstd.reshape(shape)
    h = n.multiply(n.subtract(x, mean.reshape(shape)), rstd)
    g = grad if weight is None else n.multiply(grad, weight.reshape(shape))
    dx = input_gradient(n, g, h, rstd, dims) if train else n.multiply(g, rstd)
    return (
        dx if output_mask[0] else None,
        n.sum(n.multiply(grad, h), dims) if output_mask[1] else None,
        n.sum(grad, dims) if output_mask[2] else None,
    )
