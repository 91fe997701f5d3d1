"""Fused optimizers, by the formulas and in the order of torch's loops over parameters.

Coefficients such as 1 - beta ** step are Python floats, as in the loops, so that both give the same
numbers.  A step that a gradient scaler skips is a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.elementwise.decided import maximum
from pytest_trainsafe.arithmetic.semantics.elementwise.pointwise import scaled
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

Tensors = Sequence[torch.Tensor]
Maybe = torch.Tensor | None


def _gradients(
    n: Numbers, grads: Tensors, maximize: bool, grad_scale: Maybe, found_inf: Maybe
) -> Iterator[torch.Tensor]:
    """The gradients, unscaled; none if the step is skipped."""
    if found_inf is not None and n.decide("item", torch.Tensor.item, found_inf):
        return
    for grad in grads:
        if grad_scale is not None:
            grad.copy_(n.divide(grad, grad_scale))
        yield n.negate(grad) if maximize else grad


def _number(n: Numbers, x: torch.Tensor) -> Any:
    return n.decide("item", torch.Tensor.item, x)


def _adam_calls(draw: Draw) -> Iterable[Call]:
    options: dict[str, Any] = {
        "lr": 0.01, "beta1": 0.75, "beta2": 0.875, "weight_decay": 0.0, "eps": 1e-8,
        "amsgrad": False, "maximize": False,
    }  # fmt: skip
    for changed in (
        {},
        {"weight_decay": 0.125, "maximize": True},
        {"amsgrad": True, "beta1": 0.5},
    ):
        moments = [draw(2, 3)], [draw.positive(2, 3)]
        largest = [draw.positive(2, 3)] if changed.get("amsgrad") else []
        step = [torch.tensor(3.0, dtype=torch.float64)]
        yield call([draw(2, 3)], [draw(2, 3)], *moments, largest, step, **(options | changed))


def _adam(name: str, decoupled: bool) -> None:
    @semantics_of(f"aten._fused_{name}_", examples=_adam_calls)
    def fused_adam(
        n: Numbers,
        parameters: Tensors,
        grads: Tensors,
        averages: Tensors,
        squares: Tensors,
        largest: Tensors,
        steps: Tensors,
        lr: Value,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Maybe = None,
        found_inf: Maybe = None,
    ) -> None:
        given = _gradients(n, grads, maximize, grad_scale, found_inf)
        rate = _number(n, lr) if isinstance(lr, torch.Tensor) else lr
        for index, grad in enumerate(given):
            x, step = parameters[index], _number(n, steps[index])
            if weight_decay and decoupled:
                x.copy_(n.multiply(x, 1 - rate * weight_decay))
            elif weight_decay:
                grad = n.add(grad, n.multiply(x, weight_decay))
            average, square = averages[index], squares[index]
            average.copy_(n.add(average, n.multiply(1 - beta1, n.subtract(grad, average))))
            share = n.multiply(n.square(grad), 1 - beta2)
            square.copy_(n.add(n.multiply(square, beta2), share))
            second = square
            if amsgrad:
                second = largest[index]
                second.copy_(maximum(n, second, square))
            root = n.divide(n.sqrt(second), (1 - beta2**step) ** 0.5)
            change = n.divide(average, n.add(root, eps))
            x.copy_(n.subtract(x, n.multiply(change, rate / (1 - beta1**step))))


_adam("adam", decoupled=False)
_adam("adamw", decoupled=True)


def _sgd_calls(draw: Draw) -> Iterable[Call]:
    options: dict[str, Any] = {
        "weight_decay": 0.0, "momentum": 0.0, "lr": 0.25, "dampening": 0.0, "nesterov": False,
        "maximize": False, "is_first_step": False,
    }  # fmt: skip
    for changed in (
        {},
        {"weight_decay": 0.125, "maximize": True},
        {"momentum": 0.5, "dampening": 0.25},
        {"momentum": 0.5, "nesterov": True},
        {"momentum": 0.5, "is_first_step": True},
    ):
        momenta = [draw(2, 3)] if "momentum" in changed else []
        yield call([draw(2, 3)], [draw(2, 3)], momenta, **(options | changed))


@semantics_of("aten._fused_sgd_", examples=_sgd_calls)
def fused_sgd(
    n: Numbers,
    parameters: Tensors,
    grads: Tensors,
    momenta: Tensors,
    weight_decay: float,
    momentum: float,
    lr: Value,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Maybe = None,
    found_inf: Maybe = None,
) -> None:
    for index, grad in enumerate(_gradients(n, grads, maximize, grad_scale, found_inf)):
        x = parameters[index]
        if weight_decay:
            grad = n.add(grad, n.multiply(x, weight_decay))
        if momentum:
            kept = momenta[index]
            if is_first_step:
                kept.copy_(grad)
            else:
                share = n.lift(scaled(n, grad, 1 - dampening))
                kept.copy_(n.add(n.multiply(kept, momentum), share))
            grad = n.add(grad, n.multiply(kept, momentum)) if nesterov else kept
        x.copy_(n.subtract(x, n.multiply(grad, lr)))


def _adagrad_calls(draw: Draw) -> Iterable[Call]:
    options: dict[str, Any] = {
        "lr": 0.25, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-10, "maximize": False,
    }  # fmt: skip
    for changed in ({}, {"weight_decay": 0.125, "lr_decay": 0.5}, {"maximize": True}):
        step = [torch.tensor(3.0, dtype=torch.float64)]
        sums = [draw.positive(2, 3)]
        yield call([draw(2, 3)], [draw(2, 3)], sums, step, **(options | changed))


@semantics_of("aten._fused_adagrad_", examples=_adagrad_calls)
def fused_adagrad(
    n: Numbers,
    parameters: Tensors,
    grads: Tensors,
    sums: Tensors,
    steps: Tensors,
    lr: Value,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Maybe = None,
    found_inf: Maybe = None,
) -> None:
    rate = _number(n, lr) if isinstance(lr, torch.Tensor) else lr
    for index, grad in enumerate(_gradients(n, grads, maximize, grad_scale, found_inf)):
        x = parameters[index]
        if weight_decay:
            grad = n.add(grad, n.multiply(x, weight_decay))
        sums[index].copy_(n.add(sums[index], n.square(grad)))
        now = rate / (1 + (_number(n, steps[index]) - 1) * lr_decay)
        change = n.divide(grad, n.add(n.sqrt(sums[index]), eps))
        x.copy_(n.subtract(x, n.multiply(change, now)))


def _scaled_gradients(draw: Draw) -> Iterable[Call]:
    return [call([draw(2, 3), draw(2)], torch.zeros(1), draw.positive(1).float())]


@semantics_of("aten._amp_foreach_non_finite_check_and_unscale_", examples=_scaled_gradients)
def unscale(
    n: Numbers, grads: Tensors, found_inf: torch.Tensor, inverse_scale: torch.Tensor
) -> None:
    """Whether a gradient overflowed is a decision."""
    for grad in grads:
        grad.copy_(n.multiply(grad, inverse_scale))
        if n.decide("overflow", lambda each: not bool(each.isfinite().all()), grad):
            found_inf.copy_(n.lift(1))


def _scales(draw: Draw) -> Iterable[Call]:
    return [
        call(torch.ones(1), torch.tensor([steps], dtype=torch.int32), found, 2.0, 0.5, 3)
        for steps in (0, 2)
        for found in (torch.ones(1), torch.zeros(1))
    ]


@semantics_of("aten._amp_update_scale_", examples=_scales)
def update_scale(
    n: Numbers,
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    """After an overflow the scale is made smaller, and after `interval` steps without, larger."""
    overflow = bool(n.decide("item", torch.Tensor.item, found_inf))
    steps = 0 if overflow else int(tracker) + 1
    if overflow or steps == interval:
        scale.copy_(n.multiply(scale, backoff if overflow else growth))
    tracker.fill_(steps % interval)
    return scale
