"""What the graph of a loss contains."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

#: The most nodes of a graph that are looked at.
_NODES = 4096


def within(total: torch.Tensor, nodes: Collection[Any]) -> list[Any] | None:
    """Those of `nodes` that the graph of a tensor contains; None if it is too large to know."""
    left, found = set(nodes), []
    waiting, seen = [total.grad_fn], set[Any]()
    while waiting and left:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if len(seen) == _NODES:
            return None
        seen.add(node)
        if node in left:
            left.discard(node)
            found.append(node)
        waiting += [each for each, _ in node.next_functions]
    return found
