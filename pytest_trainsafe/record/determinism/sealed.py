"""Fixes the clock, the process id and the system's random numbers to the same values in every Run.

Called by the recorder in Runs whose RunSpec is `sealed`. If such Runs agree and others do not, one
of these sources is the cause of the difference. Only calls by the program's own code get fixed
values; torch and other packages read the real clock.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pytest_trainsafe.core.code_files import owner_of

#: The time at which a sealed program begins, and how far each reading of a clock advances it, both
#: in nanoseconds.
_BEGIN, _TICK = 1_000_000_000 * 10**9, 10**6

_SECONDS = ("time", "monotonic", "perf_counter", "process_time")


@contextlib.contextmanager
def sealed(wanted: bool = True) -> Iterator[None]:
    """If `wanted`, gives the program fixed clocks, process id and random bytes in this context."""
    if not wanted:
        yield
        return
    entropy = random.Random(0)
    now = _BEGIN
    on = True

    def tick() -> int:
        nonlocal now
        now += _TICK
        return now

    def answered(original: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            frame: FrameType = sys._getframe(1)
            # A program that imported this function may still call it after the context.
            theirs = on and owner_of(frame.f_code.co_filename) == "project"
            return answer(*args) if theirs else original(*args)

        return call

    answers: list[tuple[Any, str, Callable[..., Any]]] = [
        (os, "getpid", lambda: 1),
        (os, "urandom", entropy.randbytes),
    ]
    answers += [(time, name, lambda: tick() / 10**9) for name in _SECONDS]
    answers += [(time, f"{name}_ns", tick) for name in _SECONDS]
    with contextlib.ExitStack() as undo:
        for module, name, answer in answers:
            original = getattr(module, name)
            undo.callback(setattr, module, name, original)
            setattr(module, name, answered(original, answer))
        try:
            yield
        finally:
            on = False
