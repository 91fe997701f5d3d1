"""Finds when training steps begin and end, and which steps are recorded."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError


@dataclass(frozen=True, slots=True)
class Sample:
    """Selects the steps to record: the first `warm_up`, then the first of each `every` steps."""

    every: int = 1
    warm_up: int = 0

    def takes(self, step: int) -> bool:
        """Whether this step is recorded."""
        return step < self.warm_up or (step - self.warm_up) % self.every == 0


def sample_of(given: object) -> Sample:
    """The Sample of an argument of `observe`.  Raises ArgumentError if it is not valid."""
    pair = given if isinstance(given, tuple) else ()
    if len(pair) != 2 or not all(type(number) is int for number in pair):
        raise ArgumentTypeError(
            f"observe(sample={given!r}): sample must be a pair of ints, (every, warm_up); (10, 3) "
            "records steps 0 to 2 and then every tenth step"
        )
    every, warm_up = pair
    if every < 1 or warm_up < 0:
        raise ArgumentError(
            f"observe(sample={given!r}): sample is a pair (every, warm_up); the first number must "
            "be at least 1, and the second at least 0"
        )
    return Sample(every, warm_up)


@dataclass(slots=True)
class Steps:
    """The current training step of a process.

    With `automatic`, one optimizer counts the training steps: the one whose `step()` returns first.
    Each of its `step()` calls ends a training step, until the program marks steps itself.
    `now` is the number of the current step; it is None outside of the steps that a program marks.
    `recording` says whether the current step is recorded.
    """

    sample: Sample
    automatic: bool
    now: int | None = None
    recording: bool = True
    #: Whether the first loader counts the epochs.  False once the program sets the epoch.
    counts_epochs: bool = True
    _next: int = 0
    _first: weakref.ref[Any] | None = None
    _loader: weakref.ref[Any] | None = field(default=None)

    def __post_init__(self) -> None:
        self.now = 0 if self.automatic else None
        self.recording = self.sample.takes(0)

    def begin(self, number: int) -> None:
        """Begin the step `number`, which the program marks."""
        self.automatic = False
        self.now, self._next = number, number
        self.recording = self.sample.takes(number)

    def end(self) -> None:
        """End the step.  The next one begins at once, unless the program marks its steps."""
        self._next += 1
        self.now = self._next if self.automatic else None
        self.recording = self.sample.takes(self._next)

    def ends_with(self, optimizer: Any) -> bool:
        """Whether the step ends when this optimizer has stepped."""
        if not self.automatic:
            return False
        if self._first is None or self._first() is None:
            self._first = weakref.ref(optimizer)
        return self._first() is optimizer

    def epoch_of(self, loader: Any, epoch: int) -> int | None:
        """Returns `epoch` if `loader` counts the epochs of the program, else None.

        `epoch` is the number of the epoch that the loader begins.  The loader that is iterated
        first counts the epochs of the program, unless the program sets the epoch itself.
        """
        if not self.counts_epochs:
            return None
        if self._loader is None or self._loader() is None:
            self._loader = weakref.ref(loader)
        return epoch if self._loader() is loader else None
