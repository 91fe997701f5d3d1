"""Finds the random stream of DeepSpeed's tracker that has replaced the default stream.

DeepSpeed keeps the states of several random streams, as Megatron-LM does.  Within
`with tracker.fork(name):`, the default generator has the state of the stream `name`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_trainsafe.core.rank.state import keep_per_rank

_MODULE = "deepspeed.runtime.activation_checkpointing.checkpointing"

#: The streams that are in use, the innermost last.
_in_use: list[str] = []
keep_per_rank(__name__, "_in_use", copied=True)


def stream_in_use() -> str:
    """The name of the stream in use; "" for the default one."""
    follow_tracker()
    return _in_use[-1] if _in_use else ""


def follow_tracker() -> None:
    """Tracks from now on which stream is in use; does nothing until DeepSpeed is imported."""
    tracker: Any = getattr(sys.modules.get(_MODULE), "CudaRNGStatesTracker", None)
    if tracker is None or hasattr(tracker.fork, "followed"):
        return
    original = tracker.fork
    parameters = inspect.signature(original)

    @contextmanager
    def fork(self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        given = parameters.bind(self, *args, **kwargs)
        given.apply_defaults()
        with original(self, *args, **kwargs):
            _in_use.append(str(given.arguments.get("name", "")))
            try:
                yield
            finally:
                _in_use.pop()

    functools.update_wrapper(fork, original)
    fork.followed = True  # type: ignore[attr-defined]
    tracker.fork = fork
