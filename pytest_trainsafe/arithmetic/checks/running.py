"""Runs one operator natively and on numbers, with copies of an example's arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_trainsafe.arithmetic.doubles import Doubles
from pytest_trainsafe.arithmetic.mode import ExactMode
from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.residues import Residues
from pytest_trainsafe.arithmetic.table import Call, Semantics
from pytest_trainsafe.compat.operators import tree_leaves, tree_map

Operator = Callable[..., Any]
Entries = Mapping[str, Semantics]


def operator(name: str) -> Operator:
    """The operator of a name such as "aten.mul"."""
    space, _, short = name.partition(".")
    found: Operator = getattr(getattr(torch.ops, space), short)
    return found


def natively(run: Operator, example: Call) -> tuple[Any, Call]:
    """What an operator returns in float64, and its arguments afterwards.

    The arguments stand for the result of an operator that returns nothing.
    """
    given = copied(example, torch.Tensor.clone)
    _seed()
    result = run(*given.args, **given.kwargs)
    return (tensors(given.args) if result is None else result), given


def on_numbers(
    run: Operator,
    example: Call,
    numbers: Numbers,
    entries: Entries,
    met: Counter[str] | None = None,
) -> tuple[Any, Call]:
    """The same on numbers of one kind; `met` counts the semantics that were used."""
    mode = ExactMode(numbers, entries)
    given = copied(example, lambda each: mode.enter(each.clone()))
    for each in tree_leaves((given.args, given.kwargs)):
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            mode.note(each)
    _seed()
    with mode:
        result = run(*given.args, **given.kwargs)
    if met is not None:
        met.update(mode.met)
    return (tensors(given.args) if result is None else result), given


def exactly(run: Operator, example: Call, entries: Entries, seed: int = 0) -> tuple[Any, Call]:
    """The same on residues, with the decisions of a run on doubles."""
    doubles = Doubles()
    on_numbers(run, example, doubles, entries)
    return on_numbers(run, example, Residues(seed, doubles.decisions.replay()), entries)


def _seed() -> None:
    # `torch.manual_seed` would also format the stack for each kind of accelerator that is not in
    # use, which takes longer than the operator.
    torch.default_generator.manual_seed(0)


def copied(example: Call, copy: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    args, kwargs = tree_map(
        lambda each: copy(each) if isinstance(each, torch.Tensor) else each,
        (example.args, example.kwargs),
    )
    return Call(args, kwargs)


def works(run: Operator, example: Call) -> bool:
    """Whether torch takes these arguments; variants take fewer than the operator."""
    try:
        natively(run, example)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def same_bits(first: Any, second: Any) -> bool:
    """Whether two results have equal numbers, bit by bit."""
    left, right = tensors(first), tensors(second)
    return len(left) == len(right) and all(
        a.shape == b.shape and a.dtype == b.dtype and _bits(a).equal(_bits(b))
        for a, b in zip(left, right, strict=True)
    )


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int64) if x.dtype is torch.float64 else x
