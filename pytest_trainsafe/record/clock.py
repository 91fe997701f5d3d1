"""Where the training program is in time: step, micro-batch, and which call of a module."""

from __future__ import annotations

from collections import Counter

import torch


class Clock:
    """The current step and micro-batch; None outside of them."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.microbatch: int | None = None
        self.steps_done = 0
        self.microbatches_done = 0
        self._calls: Counter[str] = Counter()
        self._recomputed: Counter[str] = Counter()

    def start_step(self) -> int:
        self.step = self.steps_done
        self.microbatches_done = 0
        return self.step

    def end_step(self) -> None:
        self.step = None
        self.steps_done += 1

    def start_microbatch(self, index: int) -> None:
        self.microbatch = index
        self._calls.clear()
        self._recomputed.clear()

    def end_microbatch(self) -> None:
        self.microbatch = None
        self.microbatches_done += 1

    def call(self, module: str) -> tuple[int, bool]:
        """Number this call of a module within its micro-batch, and say whether it recomputes.

        A forward that runs inside a backward is activation recomputation; it repeats the calls
        of the first forward in its own order, so it has a count of its own.
        """
        recomputing = torch._C._current_graph_task_id() != -1
        counter = self._recomputed if recomputing else self._calls
        number = counter[module]
        counter[module] += 1
        return number, recomputing
