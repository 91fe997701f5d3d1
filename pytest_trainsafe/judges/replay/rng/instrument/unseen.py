"""Detects draws from torch's CPU generator that the ledger did not intercept.

The current state of the generator is compared with its last known state. If they differ, either the
program set the state, or draws that the ledger did not see advanced the generator: in a thread of
another library, or in code that calls no torch operator.
"""

from __future__ import annotations

import torch

from pytest_trainsafe.judges.replay.rng.instrument.cpu_memory import memory_of, whole_state
from pytest_trainsafe.judges.replay.rng.instrument.cpu_memory import text as text_of
from pytest_trainsafe.trace.rng.states import distance, is_fresh, torch_state

#: The most unseen numbers that are counted at a time, and how often a rank counts them.
MAX_NUMBERS, MAX_MEASURED = 100_000, 8

#: The most states that are remembered because the program may restore them.
MAX_KNOWN = 4096


class LastState:
    """The last known state of torch's CPU generator: after its last draw, or when last checked.

    A state is bytes if it can be read from the generator's memory, and text otherwise.
    """

    def __init__(self) -> None:
        self._memory = memory_of(torch.default_generator)
        self._engine: bytearray | None = None
        self._state: torch.Tensor | None = None
        self._known: dict[str, None] = {}
        self._measured = 0
        self.value: bytes | str = ""
        self.set(self.read())
        self.know(self.value)

    def read(self) -> bytes | str:
        """The generator's current state."""
        memory = self._memory
        read = None if memory is None else memory.read()
        return torch_state(torch.default_generator) if read is None else read

    def stop_reading_memory(self) -> None:
        """Stops reading the generator's memory, because other threads draw from it too."""
        self._memory = None

    def set(self, value: bytes | str, state: torch.Tensor | None = None) -> None:
        """Stores `value` as the last known state.

        `state` is the tensor of `value`, from `get_state`. If `state` is None, the generator must
        still be in the state `value`, so that the tensor can be read from the generator.
        """
        self.value = value
        if state is not None:
            self._state = state
        elif self._memory is not None and type(value) is bytes:
            self._engine = self._memory.copy(self._engine)
            self._state = None
        else:
            self._state = torch.default_generator.get_state()

    def know(self, value: bytes | str) -> str:
        """Remembers a state that the program may restore later, and returns its text."""
        known = as_text(value)
        self._known[known] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return known

    def unseen(self, value: bytes | str, state: torch.Tensor) -> int | None:
        """How many 32-bit numbers were drawn unseen between the last known state and `value`.

        `state` is the tensor of `value`, from `get_state`. None if `value` is a state in which the
        program may have put the generator: a state that was seen before, or one right after
        seeding. Otherwise, 0 means that the number is unknown: MAX_NUMBERS draws do not lead to
        `value`, or numbers were counted MAX_MEASURED times before.
        """
        text = as_text(value)
        if text == as_text(self.value) or is_fresh(text) or text in self._known:
            return None
        if self._measured >= MAX_MEASURED:
            return 0
        self._measured += 1
        before = self._state
        if before is None:
            assert self._engine is not None
            before = whole_state(self._engine)
        return distance(before, state, MAX_NUMBERS)


def as_text(value: bytes | str) -> str:
    """The text of a state of torch's CPU generator that `LastState` read."""
    return value if isinstance(value, str) else text_of(value)


def same_state(one: bytes | str, other: bytes | str) -> bool:
    """Whether two values of `LastState.read` are the same state, be they bytes or texts."""
    return one == other or (type(one) is not type(other) and as_text(one) == as_text(other))
