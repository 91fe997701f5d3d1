"""Where the training program is in time: step, micro-batch, and which call of a module.

The recorder owns one; its errors are what a program sees that marks time wrongly.
"""

from __future__ import annotations

from collections import defaultdict

import torch


class ProgramError(Exception):
    """A training program used its context in a way that has no meaning; says how to mend it."""


class Clock:
    """The current step and micro-batch; None outside of them."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.microbatch: int | None = None
        self.steps_done = 0
        self._seen: set[int] = set()
        self._log: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._first_calls: defaultdict[str, int] = defaultdict(int)
        self._replayed: dict[tuple[str, int, int], int] = {}

    @property
    def microbatches_done(self) -> int:
        """How many micro-batches the current step has had, with the one that is running."""
        return len(self._seen)

    def start_step(self) -> int:
        """Enter the next step and return its number."""
        if self.step is not None:
            raise ProgramError(
                f"ctx.step was entered inside step {self.step}; leave `with ctx.step():` before "
                "the next one begins"
            )
        self.step = self.steps_done
        self._seen.clear()
        return self.step

    def end_step(self) -> None:
        """Leave the step, also where an exception ended it: its number is not used again."""
        self.step = self.microbatch = None
        self.steps_done += 1

    def start_microbatch(self, index: int) -> None:
        """Enter a micro-batch of the current step."""
        if self.step is None:
            raise ProgramError(
                "ctx.microbatch was entered outside ctx.step; put it inside `with ctx.step():`"
            )
        if self.microbatch is not None:
            raise ProgramError(
                f"ctx.microbatch({index}) was entered inside micro-batch {self.microbatch}; leave "
                "`with ctx.microbatch(...):` before the next one begins"
            )
        if index in self._seen:
            raise ProgramError(
                f"ctx.microbatch({index}) was entered twice in step {self.step}; give every "
                "micro-batch of a step its own number, as ctx.microbatches(total) does"
            )
        self.microbatch = index
        self._seen.add(index)
        self._log.clear()
        self._first_calls.clear()
        self._replayed.clear()

    def end_microbatch(self) -> None:
        """Leave the micro-batch."""
        self.microbatch = None

    def call(self, module: str) -> tuple[int | None, bool]:
        """Number this call of a module within its micro-batch, and say whether it recomputes.

        A forward that runs inside a backward is activation recomputation: it has the number of
        the call it repeats, or None where it repeats none.
        """
        now = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        recomputing = torch._C._current_graph_task_id() != -1
        if recomputing:
            number = self._repeated(module)
        else:
            number = self._first_calls[module]
            self._first_calls[module] += 1
        if number is not None:
            self._log[module].append((now, number))
        return number, recomputing

    def _repeated(self, module: str) -> int | None:
        """The number of the call that the running backward node repeats.

        Checkpoints are recomputed last first, so counting again would mix their calls up.
        Autograd numbers its nodes as they are made: the calls that a checkpoint's node made are
        the first ones after it.  Without reentry the node is one of the calls' own, and the
        number may be wrong; but then no gradient arrives at what is recomputed.
        """
        made: int = torch._C._current_autograd_node()._sequence_nr()
        log = self._log[module]
        key = (module, torch._C._current_graph_task_id(), made)
        first = next((i for i, (when, _) in enumerate(log) if when > made), len(log))
        at = self._replayed.get(key, first)
        if at >= len(log):
            return None
        self._replayed[key] = at + 1
        return log[at][1]
