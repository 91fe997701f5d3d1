"""Fixes the clock, the process id and the system's random numbers to the same values in every Run.

Called by the recorder in Runs whose RunSpec is `sealed`. If such Runs agree and others do not, one
of these sources is the cause of the difference. Only calls by the program get fixed values, also
through `random`, `secrets` and `uuid`; torch and other packages, and `tempfile` and
`multiprocessing`, read the real sources.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch

from pytest_trainsafe.core.rank import current_rank
from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.judges.replay.determinism.instrument.outside_reads import program_frame

#: The time at which a sealed program begins, and how far each reading of a clock advances it, both
#: in nanoseconds.
_BEGIN, _TICK = 1_000_000_000 * 10**9, 10**6

_SECONDS = ("time", "monotonic", "perf_counter", "process_time")

#: Greater than any process id of Linux, so that no signal to it reaches a process.
_NO_PID = 2**22 + 1


@contextlib.contextmanager
def sealed(wanted: bool = True) -> Iterator[None]:
    """If `wanted`, gives the program fixed clocks, process id and random bytes in this context."""
    if not wanted:
        yield
        return
    # Ranks get different values, as they do otherwise: they may name files by them.
    rank = current_rank().rank
    entropy = random.Random(rank)
    now = _BEGIN
    on = True

    def tick() -> int:
        nonlocal now
        now += _TICK
        return now

    def answered(original: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            # A program that imported this function may still call it after the context.
            theirs = on and program_frame(sys._getframe(1)) is not None
            return answer(*args) if theirs else original(*args)

        return call

    def torch_seed() -> int:
        seed = entropy.getrandbits(63)
        torch.manual_seed(seed)
        return seed

    unseeded = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        # Without a seed, the generator reads the system's random numbers in C.
        if a is None and on and program_frame(sys._getframe(1)) is not None:
            a = entropy.getrandbits(256)
        unseeded(self, a, version)

    answers: list[tuple[Any, str, Callable[..., Any]]] = [
        (os, "getpid", lambda: _NO_PID + rank),
        (os, "urandom", entropy.randbytes),
        # `random`, and through it `secrets`, has its own name for os.urandom.
        (random, "_urandom", entropy.randbytes),
        (torch, "seed", torch_seed),
        (torch.random, "seed", torch_seed),
    ]
    answers += [(time, name, lambda: tick() / 10**9) for name in _SECONDS]
    answers += [(time, f"{name}_ns", tick) for name in _SECONDS]
    replaced = [
        (module, name, answered(getattr(module, name), answer)) for module, name, answer in answers
    ]
    replaced += [
        (random.Random, "seed", seed),
        (random, "seed", MethodType(seed, random._inst)),
    ]
    with contextlib.ExitStack() as undo:
        for owner, name, function in replaced:
            replacing(owner, name)
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)
        try:
            yield
        finally:
            on = False
