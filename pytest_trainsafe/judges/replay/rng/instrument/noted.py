"""Notes draws when they happen. Later, makes the events of many draws at a time.

In the middle of a step, the code and data of the ledger are not in the processor's caches, so it
runs slowly. Therefore only what cannot be found out later is noted at the time of a draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec
import torch
from torch import nn

from pytest_trainsafe.judges.replay.rng.instrument.frames import Place
from pytest_trainsafe.judges.replay.rng.instrument.seeding import Seeded
from pytest_trainsafe.judges.replay.rng.instrument.unseen import LastState, as_text
from pytest_trainsafe.trace.rng.events import TORCH_CPU, DrawEvent, Phase

#: The most draws that are held until their events are made.
MAX_HELD = 256


class Draw(NamedTuple):
    """What is noted when something draws.

    `generator` is a generator of torch, or the name of any other. `before` and `after` are its
    states: values of `LastState.read` for torch's default CPU generator, else texts. `draws` is
    the number of draws of one line that are noted together.
    """

    generator: object
    name: str
    operator: str
    before: bytes | str
    after: bytes | str
    place: Place
    phase: Phase
    step: int
    microbatch: int | None
    training: bool
    shape: tuple[int, ...]
    seed: int | None
    stream: str
    thread: str
    shared: str
    seeded: Seeded
    draws: int = 1


@dataclass(slots=True)
class Pending:
    """The last draw outside of modules. Further draws at the same site are added to its count.

    `threads` is the number of threads at the last draw.
    """

    draw: Draw
    site: object
    threads: int
    count: int = 1


class EventSink(Protocol):
    """An object that receives the events of random draws, such as the writer of a trace."""

    def add(self, event: msgspec.Struct) -> None:
        """Take one event."""


class NullSink:
    """Takes events and keeps none."""

    def add(self, event: msgspec.Struct) -> None:
        """Take one event."""


class TeeSink(NamedTuple):
    """Two sinks that take the same events."""

    first: EventSink
    second: EventSink

    def add(self, event: msgspec.Struct) -> None:
        """Take one event."""
        self.first.add(event)
        self.second.add(event)


class NotedDraws:
    """Holds the draws of a rank, and passes them to `sink` as events, in their order.

    For each draw from torch's default CPU generator, the state after the draw is passed to
    `last.know`, because the program may restore this state later.
    """

    def __init__(self, sink: EventSink, last: LastState) -> None:
        self.sink = sink
        #: The names of the watched modules.
        self.names: Mapping[nn.Module, str] = {}
        self._last = last
        self._held: list[Draw] = []

    def hold(self, draw: Draw) -> None:
        """Make the event of this draw later."""
        self._held.append(draw)
        if len(self._held) >= MAX_HELD:
            self.write()

    def write(self) -> None:
        """Make the events of all draws that are held."""
        held, self._held = self._held, []
        for draw in held:
            self.sink.add(self._event(draw))

    def _event(self, draw: Draw) -> DrawEvent:
        before, after, place = draw.before, draw.after, draw.place
        if draw.name == TORCH_CPU:
            before, after = as_text(before), self._last.know(after)
        assert isinstance(before, str)
        assert isinstance(after, str)
        return DrawEvent(
            draw.name,
            draw.phase,
            before,
            after,
            draw.operator,
            step=draw.step,
            microbatch=draw.microbatch,
            module=None if place.module is None else self.names[place.module],
            training=draw.training,
            at=place.at,
            user=place.user,
            shape=draw.shape,
            seed="" if draw.seed is None else str(draw.seed),
            stream=draw.stream,
            thread=draw.thread,
            shared=draw.shared,
            seeded=draw.seeded.seeded,
            restored=draw.seeded.restored,
            count=draw.draws,
        )


def shape_of(args: Sequence[Any], made: Any) -> tuple[int, ...]:
    """The shape of an operator's result, else of its first argument; () if neither is a tensor."""
    for value in (made, *args[:1]):
        if isinstance(value, torch.Tensor):
            return tuple(value.shape)
    return ()
