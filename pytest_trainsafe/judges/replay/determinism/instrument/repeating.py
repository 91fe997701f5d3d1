"""Repeats a Run with what may differ fixed or varied, and records the operators of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from pytest_trainsafe.judges.replay.determinism.instrument.numpy_memory import filled
from pytest_trainsafe.judges.replay.determinism.instrument.operator_ledger import OperatorLedger
from pytest_trainsafe.judges.replay.determinism.instrument.sealed import sealed
from pytest_trainsafe.record.instrument import Instrument, Recording, WatchedModel


class Repeating(Instrument):
    """Does what the Run's `operators`, `sealed` and `environ` ask for."""

    name = "determinism"
    after: ClassVar = {"rng": "the stack of an operator that draws ends in the ledger's files"}

    def __init__(self, recorder: Recording) -> None:
        self._spec = spec = recorder.spec
        self._operators = (
            None
            if spec.operators is None
            else OperatorLedger(spec.operators, recorder.writer, recorder.clock)
        )

    @contextmanager
    def around(self) -> Iterator[None]:
        """Records operators, fixes clocks, and fills memory that NumPy leaves unset."""
        with ExitStack() as entered:
            if self._operators is not None:
                entered.enter_context(self._operators.recording())
            entered.enter_context(sealed(self._spec.sealed))
            entered.enter_context(filled(self._spec.environ))
            yield

    def watch(self, watched: WatchedModel) -> None:
        """Attributes operators to the model's modules from now on."""
        if self._operators is not None:
            self._operators.watch(watched.called)
