"""Finds generators that several threads of a rank use at once, so that draws have no fixed order.

A program that passes its generator to a thread and waits until the thread has drawn is
deterministic, and is not reported. Nor is one whose main thread draws only before it starts the
thread that draws from then on.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType

import torch

from pytest_trainsafe.compat.tensors import address_of
from pytest_trainsafe.core.code_files import is_stdlib

#: The most generators whose users are remembered.
MAX_GENERATORS = 64

#: Methods of locks, queues, threads and futures in which a thread waits for another.
_WAITING = frozenset(
    {"acquire", "get", "join", "poll", "put", "read", "recv", "result", "select", "wait"}
)


@dataclass(slots=True)
class _Users:
    """The threads that drew from one generator, by ident.

    The entry refers to its generator, so that no new generator gets its address. `started` are the
    threads that were running when the thread that trains drew last.
    """

    generator: object
    threads: dict[int, threading.Thread] = field(default_factory=dict)
    started: Sequence[threading.Thread] = ()


class Sharing:
    """Remembers which threads drew from each generator. `main` is the thread that trains."""

    def __init__(self, main: int) -> None:
        self._main = main
        self._lock = threading.Lock()
        self._users: dict[object, _Users] = {}

    def other(self, generator: object) -> str:
        """Returns the name of another thread that drew from a generator and is at work now, or "".

        Call it in the thread that draws from the generator; it remembers that thread as a user. In
        the thread that trains it always returns "", because the next draw of the other thread will
        report the sharing. Draws of the thread that trains from before this thread was started do
        not count: they come first, whatever the timing.
        """
        # torch makes a new Python object each time it hands a generator to a kernel.
        key = address_of(generator) if isinstance(generator, torch.Generator) else generator
        here, ident = threading.current_thread(), threading.get_ident()
        with self._lock:
            known = self._users.pop(key, None) or _Users(generator)
            if len(self._users) >= MAX_GENERATORS:
                del self._users[next(iter(self._users))]
            self._users[key] = known  # the least recently used generator is forgotten first
            users = known.threads
            for dead in [each for each, thread in users.items() if not thread.is_alive()]:
                del users[dead]
            if ident == self._main:
                known.started = threading.enumerate()
                others = []
            else:
                others = [thread for each, thread in users.items() if each != ident]
                if here not in known.started:
                    # The thread that trains drew only before it started this thread.
                    others = [thread for thread in others if thread.ident != self._main]
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
