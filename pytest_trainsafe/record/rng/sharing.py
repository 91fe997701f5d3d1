"""Finds generators that several threads of a rank use at once, so that draws have no fixed order.

A program that passes its generator to a thread and waits until the thread has drawn is
deterministic, and is not reported.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from types import CodeType, FrameType

import torch

from pytest_trainsafe.core.code_files import is_stdlib

#: The most generators whose users are remembered.
MAX_GENERATORS = 64

#: Methods of locks, queues, threads and futures in which a thread waits for another.
_WAITING = frozenset(
    {"acquire", "get", "join", "poll", "put", "read", "recv", "result", "select", "wait"}
)


class Sharing:
    """Remembers which threads drew from each generator. `main` is the thread that trains."""

    def __init__(self, main: int) -> None:
        self._main = main
        self._lock = threading.Lock()
        # Each entry refers to its generator, so that no new generator gets its address.
        self._users: dict[object, tuple[object, dict[int, threading.Thread]]] = {}

    def other(self, generator: object) -> str:
        """Returns the name of another thread that drew from a generator and is at work now, or "".

        Call it in the thread that draws from the generator; it remembers that thread as a user. In
        the thread that trains it always returns "", because the next draw of the other thread will
        report the sharing.
        """
        # torch makes a new Python object each time it hands a generator to a kernel.
        key = generator._cdata if isinstance(generator, torch.Generator) else generator  # type: ignore[attr-defined]
        here, ident = threading.current_thread(), threading.get_ident()
        with self._lock:
            known = self._users.pop(key, None) or (generator, {})
            if len(self._users) >= MAX_GENERATORS:
                del self._users[next(iter(self._users))]
            self._users[key] = known  # the least recently used generator is forgotten first
            users = known[1]
            for dead in [each for each, thread in users.items() if not thread.is_alive()]:
                del users[dead]
            others = [] if ident == self._main else [u for i, u in users.items() if i != ident]
            users[ident] = here
        if not others:
            return ""
        frames = sys._current_frames()
        for other in others:
            frame = frames.get(other.ident or 0)
            if frame is None:  # it has ended
                continue
            busy = not _waits(frame) if other.ident == self._main else _has_work(frame)
            if busy:
                return other.name[:99]
        return ""


def _has_work(frame: FrameType | None) -> bool:
    """Whether a thread with the innermost frame `frame` runs code outside of the standard library.

    An idle thread of a pool does not.
    """
    while frame is not None:
        if not is_stdlib(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _waits(frame: FrameType) -> bool:
    """Whether a thread waits in a method of a lock, a queue or a similar object."""
    return _method(frame.f_code, frame.f_lasti) in _WAITING


@functools.lru_cache(maxsize=256)
def _method(code: CodeType, at: int) -> str:
    """The method that the instruction `at` calls, "" if it calls none."""
    instructions = {each.offset: each for each in dis.get_instructions(code)}
    call = instructions.get(at)
    if call is None or not call.opname.startswith("CALL"):
        return ""
    # In `a.b.wait(c.d)`, `a`, `a.b` and `a.b.wait` begin where the call begins; `c.d` does not.
    begins = _begins(call)
    names = [
        str(each.argval)
        for offset, each in instructions.items()
        if offset < at and each.opname in ("LOAD_METHOD", "LOAD_ATTR") and _begins(each) == begins
    ]
    return names[-1] if names else ""


def _begins(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    positions = instruction.positions
    return (None, None) if positions is None else (positions.lineno, positions.col_offset)
