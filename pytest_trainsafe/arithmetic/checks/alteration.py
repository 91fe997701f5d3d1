"""Altered semantics, of which a check must find each one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.table import Semantics
from pytest_trainsafe.compat.operators import tree_map

Change = Callable[[Numbers, torch.Tensor], torch.Tensor]

_RESULTS: dict[str, Change] = {
    "plus one": lambda n, x: n.add(x, 1),
    "negative": lambda n, x: n.negate(x),
    "twice": lambda n, x: n.multiply(x, 2),
    "a millionth more": lambda n, x: n.multiply(x, 1.000001),
    "constant": lambda n, x: n.lift(torch.ones_like(x, dtype=torch.int64)),
}
#: Their results are zeros, which most alterations keep.
_ZEROS = frozenset(f"aten.{name}" for name in ("zero", "zero_", "zeros", "zeros_like", "new_zeros"))
#: Of a tensor argument, they read the shape alone.
_SHAPE_ALONE = frozenset(
    f"aten.{name}"
    for name in (
        "uniform", "exponential", "log_normal", "random", "normal_functional", "normal_",
        "bernoulli", "bernoulli_", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward",
        "max_pool2d_with_indices_backward",
    )
)  # fmt: skip


def altered(semantics: Semantics, chance: random.Random) -> tuple[str, Semantics]:
    """A random alteration of one entry, and its name: of a result, or of an argument.

    An operator that moves elements is altered in its result; so is one without a float argument.
    """
    kind = chance.choice([*_RESULTS, "an argument replaced by ones"])
    rule = semantics.rule
    if semantics.name in _ZEROS:
        kind = "plus one"
    if kind in _RESULTS or rule is None or semantics.factory or semantics.name in _SHAPE_ALONE:
        kind = kind if kind in _RESULTS else "plus one"
        return kind, replace(semantics, rule=_with_result(semantics, _RESULTS[kind]))
    return kind, replace(semantics, rule=_with_argument(rule))


def _with_result(semantics: Semantics, change: Change) -> Callable[..., Any]:
    rule = semantics.rule
    space, _, short = semantics.name.partition(".")

    def changed(n: Numbers, *args: Any, **kwargs: Any) -> Any:
        if rule is None:
            result = getattr(getattr(torch.ops, space), short)(*args, **kwargs)
        else:
            result = rule(n, *args, **kwargs)
        if result is None:  # an operator on lists of tensors, of which it changes the first
            args[0][0].copy_(change(n, args[0][0]))
            return None
        result = tree_map(lambda each: _changed(n, each, change), result)
        return args[0].copy_(result) if semantics.name.endswith("_") else result

    return changed


def _changed(n: Numbers, result: Any, change: Change) -> Any:
    """Numbers by `change`; decisions are inverted, and indices and Python numbers moved by one."""
    if not isinstance(result, torch.Tensor):
        return not result if isinstance(result, bool) else result + 1 if result else result
    if result.is_floating_point():
        return change(n, result)
    return ~result if result.dtype is torch.bool else result + 1


def _with_argument(rule: Callable[..., Any]) -> Callable[..., Any]:
    def changed(n: Numbers, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for place in reversed(range(len(given))):
            each = given[place]
            if isinstance(each, torch.Tensor) and each.is_floating_point() and each.numel():
                given[place] = n.lift(torch.ones_like(each, dtype=torch.int64))
                return rule(n, *given, **kwargs)
        result = rule(n, *args, **kwargs)
        return tree_map(lambda each: _changed(n, each, _RESULTS["plus one"]), result)

    return changed
