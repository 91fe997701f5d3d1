"""`all_to_all_single` of as many rows as a tensor says, in a graph that is captured.

A process group takes integers only.  The functional operator takes sizes that are known when the
graph runs.

Needs `all_to_all_single` of torch.ops._c10d_functional.  Without it, a program that reads the sizes
of an exchange from a tensor is not captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from pytest_trainsafe.compat.private import Capability

FUNCTIONAL = Capability("exchanges of sizes that a tensor says are not captured")

#: What torch.distributed calls of a process group, by release.
_METHODS = ("all_to_all_single", "alltoall_base")


@contextmanager
def uneven_exchanges() -> Iterator[None]:
    """While it is active, an exchange of sizes that a tensor says calls the functional operator."""
    exchange = FUNCTIONAL.of("torch.ops", "_c10d_functional.all_to_all_single")
    wait = FUNCTIONAL.of("torch.ops", "_c10d_functional.wait_tensor")
    with ExitStack() as stack:
        for name in _METHODS if exchange and wait else ():
            if hasattr(dist.ProcessGroup, name):
                stack.enter_context(_patched(name, exchange, wait))
        yield


def _patched(name: str, exchange: Any, wait: Any) -> Any:
    given = getattr(dist.ProcessGroup, name)

    def exchanged(
        group: Any,
        output: torch.Tensor,
        rows: torch.Tensor,
        received: Sequence[Any],
        sent: Sequence[Any],
        *rest: Any,
        **named: Any,
    ) -> Any:
        if not any(isinstance(each, torch.SymInt) for each in (*received, *sent)):
            return given(group, output, rows, received, sent, *rest, **named)
        output.copy_(wait(exchange(rows, received, sent, group.group_name)))
        return _Done()

    return patch.object(dist.ProcessGroup, name, exchanged)


class _Done:
    """The Work of an exchange that is part of the graph: there is nothing to wait for."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True
