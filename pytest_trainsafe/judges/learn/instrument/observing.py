"""Observes API calls and changes of state in a Run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from pytest_trainsafe.record.instrument import Instrument, Recording, WatchedModel

if TYPE_CHECKING:
    from pytest_trainsafe.judges.learn.instrument.ranks import RankObservation


class Observing(Instrument):
    """Observes what the Run's `observe` asks for."""

    name = "learn"
    after: ClassVar = {
        "rng": "functions that another instrument replaces are observed as the program calls them",
        "determinism": "the same",
        "state": "the same",
    }

    def __init__(self, recorder: Recording) -> None:
        self._observation: RankObservation | None = None
        if recorder.spec.observe is not None:
            from pytest_trainsafe.judges.learn.instrument.ranks import RankObservation

            self._observation = RankObservation(recorder.assignment, recorder.writer)

    def around(self) -> AbstractContextManager[object]:
        """Observes the program, and writes what was observed."""
        return nullcontext() if self._observation is None else self._observation.recording()

    def watch(self, watched: WatchedModel) -> None:
        """Observes the state of the model and of the optimizer from now on."""
        if self._observation is not None:
            self._observation.watch(watched.parts, watched.optimizer)

    @contextmanager
    def in_step(self, number: int) -> Iterator[None]:
        """Marks the step."""
        if self._observation is None:
            yield
            return
        observer = self._observation.observer
        observer.begin_step(number)
        yield
        observer.end_step()

    @contextmanager
    def in_microbatch(self, index: int) -> Iterator[None]:
        """Marks the micro-batch."""
        if self._observation is None:
            yield
            return
        meta = self._observation.observer.meta
        meta.microbatch = index
        try:
            yield
        finally:
            meta.microbatch = None

    def meta(self, values: Mapping[str, object]) -> None:
        """Attaches values to the calls that are observed from now on; checks them in any case."""
        from pytest_trainsafe.judges.learn.instrument.meta import checked

        if self._observation is None:
            checked(values)
        else:
            self._observation.meta(**values)
