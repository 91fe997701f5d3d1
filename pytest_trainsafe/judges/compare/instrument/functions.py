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

    The outputs of other modules have a node of the function `rewriting`, which names the module;
    the graph ends there too.
    """
    begins = [*begins]
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
            forward = _line(getattr(function, "forward", None))
            backward = _line(getattr(function, "backward", None))
            if forward and backward:
                read = _read(node, begins, rewriting)
                yield Applied(module, function.__name__, forward, backward, read)
        waiting += [each for each, _ in node.next_functions if each is not None]


def _read(
    node: Any, begins: Iterable[Any], rewriting: type[torch.autograd.Function]
) -> tuple[str, ...]:
    """The modules from whose outputs a node computes, without what other modules compute."""
    waiting, kept = [node], [node]
    seen, read = {id(each) for each in begins}, dict[str, None]()
    while waiting and len(kept) < _MOST_NODES:
        for each, _ in waiting.pop(0).next_functions:
            if each is None or id(each) in seen:
                continue
            seen.add(id(each))
            kept.append(each)
            if function_of(each) is rewriting:
                read[each.module] = None
            else:
                waiting.append(each)
    return tuple(read)


def _line(method: Any) -> str:
    """The "file:line" at which a method in Python begins; "" for others."""
    code = getattr(method, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
