"""The RNG ledger of one rank: turns draws into the events of `trace/rng/events.py`.

Owned by the recorder. It reads a generator's state before and after each draw that it intercepts,
and at the boundaries of steps, where it finds draws that it did not intercept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import active_count, current_thread, get_ident
from typing import Any

import msgspec
import torch
from torch import nn

from pytest_trainsafe.judges.replay.rng.instrument import frames
from pytest_trainsafe.judges.replay.rng.instrument.functions import Functions
from pytest_trainsafe.judges.replay.rng.instrument.generators import Generators, generator_of
from pytest_trainsafe.judges.replay.rng.instrument.noted import (
    Draw,
    EventSink,
    NotedDraws,
    NullSink,
    Pending,
    TeeSink,
    shape_of,
)
from pytest_trainsafe.judges.replay.rng.instrument.seeding import Seedings
from pytest_trainsafe.judges.replay.rng.instrument.sharing import Sharing
from pytest_trainsafe.judges.replay.rng.instrument.unseen import LastState, as_text, same_state
from pytest_trainsafe.judges.replay.rng.instrument.workers import Workers
from pytest_trainsafe.record.adapter import Adapter, adapters
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.model.evaluating import Evaluating
from pytest_trainsafe.record.program_dtype import random_operators
from pytest_trainsafe.record.program_dtype.interception import Through
from pytest_trainsafe.trace.rng.events import (
    NUMPY,
    PYTHON,
    TORCH_CPU,
    DrawEvent,
    LedgerGap,
    Phase,
    UnseenDraws,
)
from pytest_trainsafe.trace.rng.states import (
    readable_state,
    state_text,
    torch_state,
)

#: The most draws in modules that are recorded per step. Outside of modules, draws of one line are
#: merged.
MAX_DRAWS = 4096


class RngLedger:
    """Records the draws of one rank; `recording` encloses the program."""

    def __init__(self, writer: EventSink, clock: Clock) -> None:
        self._last = LastState()
        self._noted = NotedDraws(writer, self._last)
        self._clock = clock
        self._pid, self._main = os.getpid(), get_ident()
        self._functions = Functions(self._function, self._numpy_made)
        self._seedings = Seedings()
        self._generators = Generators()
        self._workers = Workers()
        self._sharing = Sharing(self._main)
        self._model = Evaluating(())
        self._pending: Pending | None = None
        #: The last known states of NumPy's and Python's generators.
        self._others: dict[str, str] = {}
        self._draws = 0
        #: The phase of the current block of `ctx.save` or `ctx.load`; None outside of one.
        self._doing: Phase | None = None
        #: Functions that name the current stream of a framework's RNG tracker; None before use.
        self._streams: list[Callable[[], str]] | None = None

    @contextmanager
    def recording(self, through: Through | None = None) -> Iterator[None]:
        """Records draws in this context; `through` replaces what runs an operator of torch."""
        with ExitStack() as around:
            why = random_operators.why_not()
            if why:
                self._noted.sink.add(LedgerGap("torch's random operators", why))
            else:
                around.enter_context(
                    random_operators.intercepted(self._operator, self._dropout, through)
                )
            around.enter_context(self._functions.installed())
            around.enter_context(self._seedings.installed())
            around.enter_context(self._workers.followed())
            self._last.set(self._last.read())
            self._last.know(self._last.value)
            self._others = self._generators.others()
            try:
                yield
            except BaseException:
                self._write_held()
                raise
            self.boundary()

    @contextmanager
    def copied(self, sink: EventSink) -> Iterator[None]:
        """Passes the events in this context to `sink` as well."""
        self.boundary()
        before = self._noted.sink
        self._noted.sink = TeeSink(before, sink)
        try:
            yield
        finally:
            self.boundary()
            self._noted.sink = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Records no draws in this context, in which code restores generators on purpose."""
        self.boundary()
        before, self._noted.sink = self._noted.sink, NullSink()
        try:
            yield
        finally:
            self._write_held()
            self._last.set(self._last.read())
            self._last.know(self._last.value)
            self._others = self._generators.others()
            self._noted.sink = before

    def watch(self, names: Mapping[nn.Module, str], roots: Sequence[nn.Module]) -> None:
        """Attributes draws from now on to these modules; `roots` are the watched model's parts."""
        self.boundary()
        self._noted.names, self._model = names, Evaluating(roots)

    def boundary(self) -> None:
        """Records unseen advances of generators since the last boundary. Called between draws."""
        if os.getpid() != self._pid:  # a worker of a data loader
            return
        self._write_held()
        self._draws = 0
        self._functions.install_numpy()
        self._seedings.install_numpy()
        value = self._last.read()
        if value != self._last.value:
            self._find_unseen(value, torch.default_generator.get_state(), self._phase())
        self.look()
        for draw in self._workers.draws():
            self._noted.sink.add(draw)

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
        """The states of torch's default, Python's and NumPy's generators, by name."""
        states = {TORCH_CPU: torch_state(torch.default_generator)}
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for generator in torch.cuda.default_generators:
                states[f"torch {generator.device}"] = torch_state(generator)
        return states | self._generators.others()

    def look(self) -> None:
        """Records advances of NumPy's and Python's generators that were not intercepted."""
        if os.getpid() != self._pid:
            return
        clock = self._clock
        if clock.open is not None or (clock.step is not None and not clock.microbatches_done):
            self._model.in_step()
        before, self._others = self._others, self._generators.others()
        for name, after in self._others.items():
            was = before.get(name, after)
            if was != after:
                self._write(DrawEvent(name, self._phase(), was, after, step=self._step))

    # Draws that are intercepted.

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
        if generator is torch.default_generator:
            return self._default_draw(name, partial(call, keys, *args, **kwargs), args)
        if isinstance(generator, LedgerGap):
            if self._generators.first(generator):
                self._write(generator)
            generator = None
        if generator is None or (self._pending is not None and self._count_in(generator)):
            return call(keys, *args, **kwargs)
        self._flush()
        before = readable_state(generator)
        made = call(keys, *args, **kwargs)
        after = None if before is None else readable_state(generator)
        if before is None or after is None:
            return made
        was, now = state_text(before), state_text(after)
        if was != now:
            place = self._place(skip=3)
            if not place.kinds & frames.INJECTED:
                called = self._generators.name(generator, place.user or place.at)
                self._note(generator, called, name, was, now, place, shape_of(args, made))
        return made

    def _dropout(self, call: Callable[[], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Runs torch's dropout of a tensor on the CPU, and records its draw."""
        if os.getpid() != self._pid:
            return call()
        dropped: torch.Tensor = self._default_draw("bernoulli_.float", call, (x,))
        return dropped

    def _default_draw(self, name: str, call: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        """Runs an operator that may draw from torch's default CPU generator; records a draw."""
        default = torch.default_generator
        if self._pending is not None:
            if self._count_in(default):
                return call()
            self._flush()
        last = self._last
        if get_ident() != self._main:
            last.stop_reading_memory()
        before = last.read()
        jumped = None if before == last.value else default.get_state()
        made = None
        try:
            made = call()
        finally:
            # A recomputation ends by raising in its last operator, which may be a dropout.
            after = last.read()
            if not same_state(before, after):
                place = self._place(skip=4)
                if place.kinds & frames.INJECTED:
                    last.set(after)
                    last.know(after)
                else:
                    if jumped is not None:
                        self._find_unseen(before, jumped, self._phase(place))
                    last.set(after)
                    shape = shape_of(args, made)
                    self._note(default, TORCH_CPU, name, before, after, place, shape)
        return made

    def _stream(self) -> str:
        if self._streams is None:
            plain = Adapter.rng_stream
            named = [adapter for adapter in adapters() if type(adapter).rng_stream is not plain]
            self._streams = [adapter.rng_stream for adapter in named]
        return next((name for stream in self._streams if (name := stream())), "")

    def _place(self, skip: int) -> frames.Place:
        # In a step's forward, the frames around the innermost watched module are not needed.
        whole = self._clock.step is None or in_backward()
        return frames.place(self._noted.names, whole=whole, skip=skip + 1)

    def _function(self, generator: str, name: str, call: Callable[[], Any]) -> Any:
        if os.getpid() != self._pid or self._count_in(generator):
            return call()
        self._flush()
        before = self._read(generator)
        made = call()
        after = self._read(generator)
        if after != before:
            self._others[generator] = as_text(after)
            if not frames.at_import():
                self._note(generator, generator, name, before, after, self._place(skip=2))
        return made

    def _numpy_made(self, generator: Any) -> None:
        if os.getpid() == self._pid:
            place = frames.place(())
            gap = self._generators.add_numpy(generator, place.user or place.at)
            if gap is not None:
                self._write(gap)
            self._others = {**self._generators.others(), **self._others}

    def _count_in(self, generator: object) -> bool:
        """Adds a draw to the pending one if the same line makes it.

        Reading a state takes longer than drawing a few numbers, so the states of a line in
        a loop are read once.
        """
        pending = self._pending
        if pending is None or pending.site != self._site(generator):
            return False
        pending.count += 1
        if pending.threads != active_count():  # a thread may have started since the last draw
            pending.threads = active_count()
            self._sharing.other(generator)
        return True

    def _site(self, generator: object) -> object:
        site = frames.site()
        evaluating = self._evaluating()
        clock = self._clock
        return site and (generator, site, clock.step, clock.open, evaluating, get_ident())

    def _note(
        self,
        generator: object,
        called: str,
        operator: str,
        before: bytes | str,
        after: bytes | str,
        place: frames.Place,
        shape: tuple[int, ...] = (),
    ) -> None:
        inside, clock, main = place.module, self._clock, get_ident() == self._main
        backward = in_backward()
        seed = generator.initial_seed() if isinstance(generator, torch.Generator) else None
        draw = Draw(
            generator,
            called,
            operator,
            before,
            after,
            place,
            self._phase(place),
            self._step,
            None if clock.step is None else clock.microbatch,
            inside is None or inside.training,
            shape,
            seed,
            "" if self._streams == [] else self._stream(),
            # A backward on a GPU runs in threads of torch, not of the program.
            "" if main or backward else current_thread().name[:99],
            "" if backward else self._sharing.other(generator),
            self._seedings.of(called, seed),
        )
        self._draws += 1
        site = None if inside is not None else self._site(generator)
        if site is not None:
            self._pending = Pending(draw, site, active_count())
        elif self._draws <= MAX_DRAWS:
            self._noted.hold(draw)
        elif self._draws == MAX_DRAWS + 1:
            what = f"the draws of step {draw.step} after the first {MAX_DRAWS}"
            self._write(LedgerGap(what, "the ledger records at most this many draws per step"))

    def _read(self, generator: object) -> bytes | str:
        if generator is torch.default_generator:
            return self._last.read()
        if isinstance(generator, torch.Generator):
            return torch_state(generator)
        generators = self._generators
        return generators.python_state() if generator == PYTHON else generators.numpy_state()

    def _flush(self) -> None:
        """Notes the pending draws as one, with the generator's state after the last of them."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        draw = pending.draw
        if pending.count == 1:
            self._noted.hold(draw)
            return
        after = self._read(draw.generator)
        if draw.generator is torch.default_generator:
            self._last.set(after)
        elif draw.name in (NUMPY, PYTHON):
            self._others[draw.name] = as_text(after)
        self._noted.hold(draw._replace(after=after, draws=pending.count))

    def _write_held(self) -> None:
        """Write every draw that was noted and not yet written."""
        self._flush()
        self._noted.write()

    def _write(self, event: msgspec.Struct) -> None:
        """Write an event, after the draws before it."""
        self._write_held()
        self._noted.sink.add(event)

    def _find_unseen(self, value: bytes | str, state: torch.Tensor, phase: Phase) -> None:
        """Records that the default generator is in a state that no recorded draw has led to."""
        self._write_held()
        was = as_text(self._last.value)
        count = self._last.unseen(value, state)
        self._last.set(value, state)
        now = self._last.know(value)
        if count is not None:
            self._noted.sink.add(UnseenDraws(TORCH_CPU, phase, was, now, self._step, count))

    # The step and the phase.

    @property
    def _step(self) -> int:
        """The number of the current step or, between two steps, of the next one."""
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
        if not self._model.parts:
            return "initialisation"
        if self._evaluating():
            return "evaluation"
        if inside:
            # Outside of the steps, a forward without gradients is an evaluation, except under
            # activation checkpointing, where the recomputation makes the gradients later.
            alone = self._clock.step is None and not torch.is_grad_enabled()
            return "evaluation" if alone and not kinds & frames.CHECKPOINT else "forward"
        return "optimizer" if kinds & frames.OPTIMIZER else "data"

    def _evaluating(self) -> bool:
        """Whether the program has put the model in evaluation mode, outside of the steps."""
        return self._clock.step is None and self._model.now()
