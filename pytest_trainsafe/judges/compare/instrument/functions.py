"""Finds the autograd functions that a module applies, in the graph of its output.

In a Run that rewrites the outputs of modules, the graph of one module ends at its inputs and at the
outputs of the modules that it calls, so what is found belongs to the module's own code.  Called by
the rewriter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from pytest_trainsafe.compat.autograd import function_of
from pytest_trainsafe.trace.facts import Applied

#: At most so many nodes of a graph are looked at: a graph without modules may be a whole model's.
_MOST_NODES = 1000


def applied(
    module: str,
    ends: Iterable[Any],
    begins: Iterable[Any],
    rewriting: type[torch.autograd.Function],
) -> Iterator[Applied]:
    """The functions in the graph between the nodes `begins` and `ends`, the last applied first.

    The outputs of other modules have a node of the function `rewriting`; the graph ends there too.
    """
    waiting = [node for node in ends if node is not None]
    seen = {id(node) for node in begins}
    found: set[Any] = set()
    kept: list[Any] = []  # a node that nobody holds would give its id to the next one
    while waiting and len(kept) < _MOST_NODES:
        node = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        kept.append(node)
        function = function_of(node)
        if function is rewriting:
            continue
        if function is not None and function not in found:
            found.add(function)
            lines = [_line(getattr(function, name, None)) for name in ("forward", "backward")]
            if all(lines):
                yield Applied(module, function.__name__, *lines)
        waiting += [each for each, _ in node.next_functions if each is not None]


def _line(method: Any) -> str:
    """The "file:line" at which a method in Python begins; "" for others."""
    code = getattr(method, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
