"""Reads the constants in the graph of a loss, and what it does with which results.

`losses.py` records what this finds.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import xxhash

from pytest_trainsafe.compat.autograd import (
    indices_saved,
    number_saved,
    numbers_saved,
    shape_made,
    weight_saved,
)
from pytest_trainsafe.judges.learn.events.slips import BITS, ORDER, REACH, VALUES

#: The most nodes of a graph that are looked at, and how many operators deep each of them is.
_NODES, _DEPTH = 4096, 4
#: The operands of an operator that takes any number of them are more than these.
_FEW = 3
#: The most different constants of one operator.
_VALUES = 6
_NUMBER = "number"
#: What says that an operator multiplies by no number.
_USUAL = ("alpha", "1"), ("beta", "1")
#: The fewest elements of indices and of weights that are looked at, and the most of these.
_ELEMENTS, _WEIGHTS, _LARGEST = 8, 32, 2**12
#: A share of the elements that have one value often, and mostly.
_OFTEN, _MOSTLY = 1 / 4, 1 / 2


def facts_of(total: torch.Tensor, tensors: bool) -> list[tuple[str, str]] | None:
    """What is known of the graph behind a tensor, by name; None if it is too large to know.

    The order is a digest of the operators, each with those whose results it uses up to a depth,
    once without and once with their constants.  Then come the different values of each constant,
    how far indices reach, and the frequent values of weights.

    Tensors that nodes have saved are read if `tensors` is true: where a part of the model is
    computed again for that, it must not be.
    """
    nodes = _nodes(total.grad_fn)
    if nodes is None:
        return None
    plain: dict[Any, str] = {None: "-", **{node: _operator(node) for node in nodes}}
    full, about = dict(plain), defaultdict[str, set[str]](set)
    order = _deep(nodes, plain)
    for node in nodes:
        name = plain[node]
        found = [each for each in numbers_saved(node) if each not in _USUAL]
        for what, value in found:
            about[f"{what} of {name}"].add(value)
        for what, value in _of_tensors(node) if tensors else ():
            about[f"{what} of {name} {order[node][:6]}"].add(value)
            if what == _NUMBER:
                found.append((what, value))
        full[node] = " ".join([name, *(f"{what}={value}" for what, value in found)])
    facts = [(ORDER, _digest(order)), (f"{ORDER} and constants", _digest(_deep(nodes, full)))]
    for name, texts in about.items():
        if name.startswith((REACH, VALUES)):
            facts += [(name, text) for text in sorted(texts)]
        elif len(texts) <= _VALUES:
            facts.append((name, " ".join(sorted(texts))))
    return facts


def _nodes(root: Any) -> list[Any] | None:
    waiting, seen = [root], {root: None}
    while waiting:
        for each, _ in waiting.pop().next_functions:
            if each is not None and each not in seen:
                seen[each] = None
                waiting.append(each)
        if len(seen) > _NODES:
            return None
    return list(seen)


def _deep(nodes: Sequence[Any], own: Mapping[Any, str]) -> Mapping[Any, str]:
    """A hash of what each node is, and of what it uses, and so on up to the depth.

    How many of the same kind follow one another does not count, as in a stack of what a loop made.
    """
    found = own
    for _ in range(_DEPTH):
        below = {node: [found[each] for each, _ in node.next_functions] for node in nodes}
        found = {
            None: "-",
            **{
                node: _hash(f"{own[node]}({','.join(_once(uses))})") for node, uses in below.items()
            },
        }
    return found


def _once(uses: Sequence[str]) -> Sequence[str]:
    return uses if len(uses) <= _FEW else [each for each, _ in itertools.groupby(uses)]


def _of_tensors(node: Any) -> Iterator[tuple[str, str]]:
    """A number, how far indices reach into what they number, and the frequent values of weights."""
    number = number_saved(node)
    if number is not None:
        yield _NUMBER, f"{number:.6g}"
    for size, indices in indices_saved(node, shape_made(node, 0)):
        if size >= _ELEMENTS and indices.numel() >= _ELEMENTS:
            part = (int(indices.max()) + 1) / size
            yield REACH, "all" if part == 1 else "half" if part >= 0.5 else "less"
    weight = weight_saved(node)
    if weight is not None and _WEIGHTS <= weight.numel() <= _LARGEST:
        values, counts = weight.double().unique(return_counts=True)  # type: ignore[no-untyped-call]
        # A choice between two or three things may follow from the first weights.
        if not ((values == 0) | (values.abs() == 1)).all():
            shares = counts / weight.numel()
            often, mostly = (_set_of(values[shares >= share]) for share in (_OFTEN, _MOSTLY))
            yield VALUES, f"{often} {mostly}"


def _set_of(values: torch.Tensor) -> str:
    """A set of numbers as one of `BITS` bits, in which each number has a bit."""
    bits = 0
    for each in values.tolist():
        bits |= 1 << xxhash.xxh3_64_intdigest(f"{each:.5g}".encode()) % BITS
    return f"{bits:x}"


def _operator(node: object) -> str:
    return type(node).__name__.partition("Backward")[0]


def _digest(labels: Mapping[Any, str]) -> str:
    return _hash("\n".join(sorted({*labels.values()})))[:8]


def _hash(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())
