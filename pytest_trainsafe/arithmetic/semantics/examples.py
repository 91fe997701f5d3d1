"""Examples that many operators share: calls on small rationals."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_trainsafe.arithmetic.table import Call, Draw, call


def one(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3)), call(draw())]


def one_positive(draw: Draw) -> Iterable[Call]:
    return [call(draw.positive(2, 3)), call(draw.positive())]


def two(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(2, 3)), call(draw(2, 1, 3), draw(2, 1)), call(draw(2, 3), draw())]


def two_or_scalar(draw: Draw) -> Iterable[Call]:
    return [*two(draw), call(draw(2, 3), 1.5), call(draw(3), draw.integers(5, 3) + 1)]


def none(draw: Draw) -> Iterable[Call]:
    """For operators that need more than tensors, such as process groups; tested by hand."""
    return []
