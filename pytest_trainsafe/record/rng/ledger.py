"""The RNG ledger of one rank: turns draws into the events of `trace/rng/events.py`.

Owned by the recorder. It reads a generator's state before and after each draw that it intercepts,
and at the boundaries of steps, where it finds draws that it did not intercept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import current_thread, get_ident
from typing import Any, NamedTuple, Protocol

import msgspec
import torch
from torch import nn

from pytest_trainsafe.record.adapter import Adapter, adapters
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.rng import frames, operators
from pytest_trainsafe.record.rng.functions import Functions
from pytest_trainsafe.record.rng.generators import Generators, generator_of
from pytest_trainsafe.record.rng.sharing import Sharing
from pytest_trainsafe.record.rng.states import python_state, state_text, torch_state
from pytest_trainsafe.record.rng.unseen import LastState
from pytest_trainsafe.record.rng.workers import Workers
from pytest_trainsafe.trace.rng.events import (
    NUMPY,
    PYTHON,
    SWITCHED_OFF,
    TORCH_CPU,
    DrawEvent,
    LedgerGap,
    Phase,
    UnseenDraws,
)

#: Draws in modules, of one step, that are written one by one; the others of a line are counted.
MAX_DRAWS = 4096


@dataclass(slots=True)
class _Pending:
    """The last draw outside of modules: further draws of the same site are added to it."""

    event: DrawEvent
    site: object
    generator: object


class _Source(NamedTuple):
    """The generator of a draw: one of torch's, or the name of another, and its known properties."""

    generator: object
    name: str
    seed: str = ""
    stream: str = ""


class EventSink(Protocol):
    """Receives the ledger's events: the writer of a trace, or a list in memory."""

    def add(self, event: msgspec.Struct) -> None:
        """Take one event."""


class RngLedger:
    """Records the draws of one rank; `recording` encloses the program."""

    def __init__(self, writer: EventSink, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._pid, self._main = os.getpid(), get_ident()
        self._functions = Functions(self._function, self._numpy_made)
        self._generators = Generators()
        self._workers = Workers()
        self._sharing = Sharing(self._main)
        self._names: Mapping[nn.Module, str] = {}
        self._roots: Sequence[nn.Module] = ()
        self._pending: _Pending | None = None
        self._last = LastState(torch.default_generator.get_state())
        #: The states that NumPy's and Python's generators were left in.
        self._others: dict[str, str] = {}
        self._draws = 0
        #: What the program says that it is doing, in a block of `ctx.save` or `ctx.load`.
        self._doing: Phase | None = None
        #: What names the streams of frameworks' trackers; None until it is asked first.
        self._streams: list[Callable[[], str]] | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records draws in this context."""
        with ExitStack() as around:
            why = operators.why_not()
            if why:
                self._writer.add(LedgerGap("torch's random operators", why))
            else:
                around.enter_context(operators.intercepted(self._operator))
            around.enter_context(self._functions.installed())
            around.enter_context(self._workers.followed())
            state = torch.default_generator.get_state()
            self._last.set(state, state_text(state))
            self._others = self._generators.others()
            yield
            self.boundary()

    @contextmanager
    def copied(self, sink: EventSink) -> Iterator[None]:
        """Passes the events in this context to `sink` as well."""
        self.boundary()
        writer, self._writer = self._writer, _TeeSink(self._writer, sink)
        try:
            yield
        finally:
            self.boundary()
            self._writer = writer

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Records nothing in this context, in which code restores generators on purpose."""
        self.boundary()
        writer, self._writer = self._writer, _NullSink()
        try:
            yield
        finally:
            self._flush()
            state = torch.default_generator.get_state()
            self._last.set(state, state_text(state))
            self._others = self._generators.others()
            self._writer = writer

    def watch(self, names: Mapping[nn.Module, str], roots: Sequence[nn.Module]) -> None:
        """Attributes draws from now on to these modules; `roots` are the watched model's parts."""
        self.boundary()
        self._names, self._roots = names, roots

    def boundary(self) -> None:
        """Finds what advanced generators unseen since the last boundary. Called between draws."""
        if os.getpid() != self._pid:  # a worker of a data loader
            return
        self._flush()
        self._draws = 0
        self._functions.install_numpy()
        state = torch.default_generator.get_state()
        self._find_unseen(state, state_text(state), self._phase())
        self.look()
        for draw in self._workers.draws():
            self._writer.add(draw)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Assigns the draws in this context to a phase."""
        self.boundary()
        self._doing = phase
        try:
            yield
            self.boundary()
        finally:
            self._doing = None

    def states(self) -> dict[str, str]:
        """The states of the default generators, and of NumPy's own, by name."""
        states = {TORCH_CPU: torch_state(torch.default_generator)}
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for generator in torch.cuda.default_generators:
                states[f"torch {generator.device}"] = torch_state(generator)
        return states | self._generators.others()

    def look(self) -> None:
        """Finds advances of NumPy's and Python's generators, which may advance unseen."""
        if os.getpid() != self._pid:
            return
        before, self._others = self._others, self._generators.others()
        for name, after in self._others.items():
            was = before.get(name, after)
            if was != after:
                self._flush()
                self._writer.add(DrawEvent(name, self._phase(), was, after, step=self._step))

    # What draws.

    def _operator(
        self,
        name: str,
        call: Callable[..., Any],
        keys: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if os.getpid() != self._pid:
            return call(keys, *args, **kwargs)
        generator = generator_of(args, kwargs)
        if isinstance(generator, LedgerGap):
            if self._generators.first(generator):
                self._writer.add(generator)
            generator = None
        if generator is None or (self._pending is not None and self._count_in(generator)):
            return call(keys, *args, **kwargs)
        self._flush()
        before = _state(generator)
        made = call(keys, *args, **kwargs)
        after = None if before is None else _state(generator)
        if before is not None and after is not None:
            self._drawn(name, generator, before, after, _shape(args, made))
        return made

    def _drawn(
        self,
        name: str,
        generator: torch.Generator,
        before: torch.Tensor,
        after: torch.Tensor,
        shape: tuple[int, ...],
    ) -> None:
        """Called after an operator, which has drawn if the two states differ."""
        default = generator is torch.default_generator
        was, now = state_text(before), state_text(after)
        if was == now:
            return
        place = self._place(skip=4)  # of this class's and the kernel's own
        if place.kinds & frames.INJECTED:
            if default:
                self._last.set(after, now)
            return
        phase = self._phase(place)
        if default:
            if was != self._last.text:
                self._find_unseen(before, was, phase)
            self._last.set(after, now)
            called = TORCH_CPU
        else:
            called = self._generators.name(generator, place.user or place.at)
        source = _Source(generator, called, str(generator.initial_seed()), self._stream())
        self._note(source, name, phase, was, now, place, shape)

    def _stream(self) -> str:
        if self._streams is None:
            plain = Adapter.rng_stream
            named = [adapter for adapter in adapters() if type(adapter).rng_stream is not plain]
            self._streams = [adapter.rng_stream for adapter in named]
        return next((name for stream in self._streams if (name := stream())), "")

    def _place(self, skip: int) -> frames.Place:
        # In a step's forward, what is outside of the innermost watched module tells nothing more.
        whole = self._clock.step is None or in_backward()
        return frames.place(self._names, whole=whole, skip=skip + 1)

    def _function(self, generator: str, name: str, call: Callable[[], Any]) -> Any:
        if os.getpid() != self._pid or self._count_in(generator):
            return call()
        self._flush()
        before = self._read(generator)
        made = call()
        after = self._read(generator)
        if after != before:
            place = self._place(skip=2)
            self._others[generator] = after
            source = _Source(generator, generator)
            self._note(source, name, self._phase(place), before, after, place)
        return made

    def _numpy_made(self, generator: Any) -> None:
        if os.getpid() == self._pid:
            place = frames.place(())
            gap = self._generators.add_numpy(generator, place.user or place.at)
            if gap is not None:
                self._writer.add(gap)
            self._others = {**self._generators.others(), **self._others}

    def _count_in(self, generator: object) -> bool:
        """Adds a draw to the pending one if the same line makes it.

        Reading a state takes longer than drawing a few numbers, so the states of a line in
        a loop are read once.
        """
        pending = self._pending
        if pending is None or pending.site != self._site(generator):
            return False
        event = pending.event
        pending.event = msgspec.structs.replace(event, count=event.count + 1)
        return True

    def _site(self, generator: object) -> object:
        site = frames.site()
        evaluating = self._evaluating()
        clock = self._clock
        return site and (generator, site, clock.step, clock.open, evaluating, get_ident())

    def _note(
        self,
        source: _Source,
        operator: str,
        phase: Phase,
        before: str,
        after: str,
        place: frames.Place,
        shape: tuple[int, ...] = (),
    ) -> None:
        inside = place.module
        event = DrawEvent(
            source.name,
            phase,
            before,
            after,
            operator,
            step=self._step,
            microbatch=None if self._clock.step is None else self._clock.microbatch,
            module=None if inside is None else self._names[inside],
            training=inside is None or inside.training,
            at=place.at,
            user=place.user,
            shape=shape,
            seed=source.seed,
            stream=source.stream,
            # The threads of a backward on a GPU belong to no one.
            thread="" if get_ident() == self._main or in_backward() else current_thread().name[:99],
            shared="" if in_backward() else self._sharing.other(source.generator),
        )
        self._draws += 1
        site = None if inside is not None else self._site(source.generator)
        if site is not None:
            self._pending = _Pending(event, site, source.generator)
        elif self._draws <= MAX_DRAWS:
            self._writer.add(event)
        elif self._draws == MAX_DRAWS + 1:
            what = f"the draws of step {event.step} after the first {MAX_DRAWS}"
            self._writer.add(LedgerGap(what, "the ledger records at most this many draws per step"))

    def _read(self, generator: object) -> str:
        if isinstance(generator, torch.Generator):
            return torch_state(generator)
        return python_state() if generator == PYTHON else self._generators.numpy_state()

    def _flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        event = pending.event
        if event.count > 1:
            event = msgspec.structs.replace(event, after=self._read(pending.generator))
            if event.generator == TORCH_CPU:
                self._last.set(torch.default_generator.get_state(), event.after)
            elif event.generator in (NUMPY, PYTHON):
                self._others[event.generator] = event.after
        self._writer.add(event)

    def _find_unseen(self, state: torch.Tensor, text: str, phase: Phase) -> None:
        was = self._last.text
        count = self._last.unseen(state, text)
        self._last.set(state, text)
        if count is not None:
            self._writer.add(UnseenDraws(TORCH_CPU, phase, was, text, self._step, count))

    # When.

    @property
    def _step(self) -> int:
        """The step that runs; between two steps, the next one."""
        return self._clock.steps_done if self._clock.step is None else self._clock.step

    def _phase(self, place: frames.Place | None = None) -> Phase:
        kinds = 0 if place is None else place.kinds
        inside = place is not None and place.module is not None
        if in_backward():
            return "recomputation" if inside or kinds & frames.CHECKPOINT else "backward"
        if self._doing is not None:
            return self._doing
        if kinds & frames.SAVE:
            return "save"
        if kinds & frames.LOAD:
            return "load"
        if not self._roots:
            return "initialisation"
        if self._evaluating():
            return "evaluation"
        if inside:
            # Outside of the steps a forward without gradients is no training; one that a
            # checkpoint runs has none either, and gets them later.
            alone = self._clock.step is None and not torch.is_grad_enabled()
            return "evaluation" if alone and not kinds & frames.CHECKPOINT else "forward"
        return "optimizer" if kinds & frames.OPTIMIZER else "data"

    def _evaluating(self) -> bool:
        """Whether the program has put the model in evaluation mode, outside of the steps."""
        return self._clock.step is None and any(not root.training for root in self._roots)


class _NullSink:
    """Discards events."""

    def add(self, event: msgspec.Struct) -> None: ...


class _TeeSink(NamedTuple):
    """Passes events to two sinks."""

    first: EventSink
    second: EventSink

    def add(self, event: msgspec.Struct) -> None:
        self.first.add(event)
        self.second.add(event)


class NoLedger:
    """Replaces the ledger if none is kept: its methods do nothing, and the trace says so."""

    def __init__(self, writer: EventSink) -> None:
        writer.add(SWITCHED_OFF)

    @contextmanager
    def recording(self) -> Iterator[None]:
        yield

    def watch(self, names: Mapping[nn.Module, str], roots: Sequence[nn.Module]) -> None: ...

    def boundary(self) -> None: ...

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        yield

    def states(self) -> dict[str, str]:
        return {}

    def look(self) -> None: ...


def _state(generator: torch.Generator) -> torch.Tensor | None:
    """The generator's state; None if it cannot be read, as while a CUDA graph is captured."""
    try:
        return generator.get_state()
    except RuntimeError:
        return None


def _shape(args: Sequence[Any], made: Any) -> tuple[int, ...]:
    """The shape of the tensor that an operator drew for."""
    for value in (made, *args[:1]):
        if isinstance(value, torch.Tensor):
            return tuple(value.shape)
    return ()
