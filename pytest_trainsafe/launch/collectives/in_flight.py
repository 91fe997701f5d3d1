"""Watches the buffers of asynchronous calls between the call and the wait for it.

Only backends in Python tell of their calls (`launch/threads/`), because torch does not say when a
call in C++ is complete.  A rank whose Run asks for a schedule watches itself (`watching`): each
operator that reads what a call will write, or writes what a call reads or writes, is an access.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

import torch

from pytest_trainsafe.compat.dispatch_modes import TorchDispatchMode
from pytest_trainsafe.compat.operators import schema_of, used_tensors
from pytest_trainsafe.compat.tensors import bytes_of
from pytest_trainsafe.core.code_files import calling_lines, owner_of

#: What an operator did to a buffer, and what the call does to it: it will write the buffer
#: ("output"), or only reads it ("input").
Access = Literal["read output", "write output", "write input"]


@dataclass(frozen=True, slots=True)
class Accessed:
    """An operator used a buffer of a call that was not complete.

    `call` describes the call and `issued` is its line; `at` is the line of the operator.  `ours`
    says that this package's recorder read the buffer, on behalf of the program's line.
    """

    access: Access
    call: str
    issued: str
    operator: str
    at: str
    ours: bool


@dataclass(slots=True, eq=False)
class Flight:
    """One asynchronous call of this rank: the memory it uses, until `landed`."""

    call: str
    line: str
    #: First byte, byte after the last one, and whether the call writes there.
    ranges: list[tuple[int, int, bool]]
    #: Keeps the memory from being used for other tensors.
    tensors: Sequence[torch.Tensor]


@dataclass(slots=True)
class Watch:
    """What a rank has in flight; `calls` counts its asynchronous calls."""

    found: Callable[[Accessed], None]
    flights: list[Flight] = field(default_factory=list)
    calls: int = 0


class _Mine(threading.local):
    """The watch of the rank that this thread runs."""

    watch: Watch | None = None


_mine = _Mine()


@contextmanager
def watching(found: Callable[[Accessed], None]) -> Iterator[Watch]:
    """Calls `found` with each access of this rank to a buffer in flight, in this context."""
    watch = _mine.watch = Watch(found)
    try:
        with _Operators(watch):
            yield watch
    finally:
        _mine.watch = None


def departed(
    call: object, line: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Flight | None:
    """Notes that this rank has made an asynchronous call; None if it does not watch itself."""
    watch = _mine.watch
    if watch is None:
        return None
    watch.calls += 1
    ranges = [(*place, True) for each in outputs if (place := bytes_of(each)) is not None]
    ranges += [(*place, False) for each in inputs if (place := bytes_of(each)) is not None]
    flight = Flight(str(call), line, ranges, [*inputs, *outputs])
    watch.flights.append(flight)
    return flight


def landed(flight: Flight | None) -> None:
    """Notes that the program has waited for a call, or has asked and heard that it is complete."""
    watch = _mine.watch
    if flight is not None and watch is not None and flight in watch.flights:
        watch.flights.remove(flight)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator of a rank, and reports those that use a buffer in flight."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(each not in _PLAIN for each in types):
            return NotImplemented  # the subclass calls operators on the tensors that it holds
        if self._watch.flights:
            for tensor, writes in used_tensors(func, args, kwargs or {}):
                self._check(func, tensor, writes)
        return func(*args, **(kwargs or {}))

    def _check(self, func: Any, tensor: torch.Tensor, writes: bool) -> None:
        place = bytes_of(tensor)
        if place is None:
            return
        for flight in self._watch.flights:
            used = [out for lo, hi, out in flight.ranges if lo < place[1] and place[0] < hi]
            if not used or not (writes or any(used)):
                continue
            name = schema_of(func).name.rpartition("::")[2]
            access: Access = "write input"
            if any(used):
                access = "write output" if writes and _overwrites(name) else "read output"
            at, _ = calling_lines()
            self._watch.found(Accessed(access, flight.call, flight.line, name, at, _is_ours()))


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _overwrites(name: str) -> bool:
    """Whether an operator that writes a tensor does not read it."""
    in_place = name.endswith("_") and not name.endswith("__")
    return not in_place or name.removeprefix("_foreach_") in ("copy_", "fill_", "zero_")


def _is_ours() -> bool:
    """Whether this package's own code called the operator, and not only passed it on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        passes = code.co_filename == __file__ or code.co_name == "__torch_dispatch__"
        if not passes and not code.co_filename.endswith("_ops.py"):
            break
        frame = frame.f_back
    return frame is not None and owner_of(frame.f_code.co_filename) == "ours"
