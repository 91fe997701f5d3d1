"""What the graph of a loss contains."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Any

import torch

from pytest_trainsafe.compat.autograd import function_of

#: The most nodes of a graph that are looked at.
_NODES = 4096


def within(total: torch.Tensor, nodes: Collection[Any]) -> list[Any] | None:
    """Those of `nodes` that the graph of a tensor contains; None if it is too large to know."""
    left, found = set(nodes), []
    for node in _nodes(total):
        if not left:
            break
        if node is None:
            return None
        if node in left:
            left.discard(node)
            found.append(node)
    return found


def has_functions(total: torch.Tensor) -> bool:
    """Whether code in Python computes a derivative in the graph of a tensor, or it is too large."""
    return any(node is None or function_of(node) is not None for node in _nodes(total))


def _nodes(total: torch.Tensor) -> Iterator[Any]:
    """The nodes of the graph of a tensor; None follows if it has more than are looked at."""
    waiting, seen = [total.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if len(seen) == _NODES:
            yield None
            return
        seen.add(node)
        yield node
        waiting += [each for each, _ in node.next_functions]


def described(total: torch.Tensor) -> str:
    """A digest of the operators behind a tensor and their order, with the names of the operators.

    Each pair of an operator and one that it uses counts once, so that the number of layers, of
    positions or of experts does not matter.  "" if the graph is too large to know.
    """
    pairs: set[str] = set()
    waiting, seen = [total.grad_fn], {total.grad_fn}
    while waiting:
        node = waiting.pop()
        if len(seen) > _NODES:
            return ""
        for part, _ in node.next_functions if node is not None else ():
            pairs.add(f"{_operator(node)} {_operator(part)}")
            if part is not None and part not in seen:
                seen.add(part)
                waiting.append(part)
    digest = hashlib.blake2b("\n".join(sorted(pairs)).encode(), digest_size=4).hexdigest()
    names = sorted({name for pair in pairs for name in pair.split() if name != "-"})
    return f"{digest}: {' '.join(names)}"


def _operator(node: object) -> str:
    """The name of an operator; "-" for a constant."""
    return "-" if node is None else type(node).__name__.partition("Backward")[0]
