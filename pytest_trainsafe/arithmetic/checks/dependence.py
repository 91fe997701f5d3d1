"""Whether exact results depend on all that the operator's results depend on.

Semantics that lose an argument prove everything: a clamp by the order of residues is a constant,
and whatever stands behind it is equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pytest_trainsafe.arithmetic.checks.running import (
    Entries,
    exactly,
    natively,
    operator,
    tensors,
)
from pytest_trainsafe.arithmetic.errors import ExactError
from pytest_trainsafe.arithmetic.table import Call
from pytest_trainsafe.compat.operators import tree_flatten, tree_unflatten

_ELEMENTS = 2
_VISIBLE = 1e-7


def losses(name: str, entries: Entries, example: Call) -> Iterator[str]:
    """Arguments that change an element of the operator's result, and not of the exact one."""
    if entries[name].random:
        return
    run = operator(name)
    before = natively(run, example)[0]
    try:
        exact = exactly(run, example, entries)[0]
    except (ExactError, RuntimeError, TypeError):
        return  # The disagreement is reported.
    for label, changed in _changes(example):
        try:
            after = natively(run, changed)[0]
        except (RuntimeError, TypeError, ValueError):
            continue  # The operator does not take this value.
        try:
            other = exactly(run, changed, entries)[0]
        except (ExactError, RuntimeError, TypeError) as error:
            yield f"with another {label}: {type(error).__name__}: {error}"
            continue
        for moved, kept in zip(
            map(_moved, tensors(before), tensors(after)),
            map(_differs, tensors(exact), tensors(other)),
            strict=False,
        ):
            if moved.shape == kept.shape and bool((moved & ~kept).any()):
                yield f"the exact result does not depend on {label}"
                break


def _moved(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    if not before.is_floating_point() or before.shape != after.shape:
        return torch.zeros(before.shape, dtype=torch.bool)
    change = (before.double() - after.double()).abs()
    return (change > _VISIBLE) & change.isfinite()


def _differs(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    if before.shape != after.shape:
        return torch.zeros(0, dtype=torch.bool)
    return before != after


def _changes(example: Call) -> Iterator[tuple[str, Call]]:
    """The example with one element, or one float argument, a tenth larger."""
    leaves, spec = tree_flatten((example.args, example.kwargs))
    for place, leaf in enumerate(leaves):
        for label, changed in _larger(leaf):
            args, kwargs = tree_unflatten([*leaves[:place], changed, *leaves[place + 1 :]], spec)
            yield f"argument {place}{label}", Call(args, kwargs)


def _larger(leaf: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(leaf, float):
        yield "", leaf * 1.1
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        step = max(1, leaf.numel() // _ELEMENTS)
        for element in range(0, leaf.numel(), step):
            changed = leaf.contiguous().clone()
            changed.view(-1)[element] *= 1.1
            yield f", element {element}", changed
