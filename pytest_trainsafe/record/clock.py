"""Tracks the training program's position: step, micro-batch, and the call number of a module.

Owned by the recorder.  Raises ProgramError if a program marks steps or micro-batches incorrectly.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field

from pytest_trainsafe.compat.autograd import nodes_made, running_backward, running_node
from pytest_trainsafe.errors import TrainsafeError


class ProgramError(TrainsafeError):
    """A training program used its context incorrectly; the message says how to fix it.

    `defined_at` is the file, line and name of the program, for an error that none of its lines
    raises.
    """

    def __init__(self, message: str, defined_at: tuple[str, int, str] | None = None) -> None:
        super().__init__(message)
        self.defined_at = defined_at


@dataclass(slots=True)
class _Step:
    """The state of one step: what happened so far in its micro-batches, and its module calls.

    `entries` counts how often each micro-batch was entered.  `forwarded` maps a micro-batch and a
    part of the model to the number of the entry in which the part ran forward.  `reached` maps
    each backward to the micro-batch that it reached, or to None if it reached several.
    """

    entries: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    with_backward: set[int] = field(default_factory=set)
    forwarded: dict[tuple[int, str], int] = field(default_factory=dict)
    reached: dict[int, int | None] = field(default_factory=dict)
    calls: defaultdict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    log: defaultdict[tuple[int, str], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    replayed: dict[tuple[str, int, int], int] = field(default_factory=dict)


class Clock:
    """The current step, and the micro-batch of the code that runs now; None outside of them.

    A pipeline schedule runs forwards of one micro-batch while others wait for their backward.  So
    a micro-batch may be entered several times, and a backward belongs to the micro-batch whose
    outputs it reaches, wherever it runs.  `resumed` is True while a backward computes weight
    gradients that an earlier backward of the same micro-batch deferred.  `recomputed` is True once
    a backward has run forward code again (activation recomputation).  `stepping` is True while an
    optimizer's step uses gradients that were recorded when it began.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.open: int | None = None
        self.resumed = False
        self.stepping = self.stepped = False
        self.steps_done = 0
        #: Whether every dp rank computes a slice of each micro-batch (`order="split"`).
        self.split = False
        self.recomputed = False
        self._nodes: dict[int, int] = {}
        self._seen = _Step()

    @property
    def microbatch(self) -> int | None:
        """The current micro-batch: the one that a running backward reached, else the open one."""
        reached = self._seen.reached.get(running_backward())
        return self.open if reached is None else reached

    @property
    def microbatches_done(self) -> int:
        """The number of micro-batches that the current step has entered."""
        return len(self._seen.entries)

    @property
    def differentiated(self) -> int:
        """The number of micro-batches of the current step of which a gradient has arrived."""
        return len(self._seen.with_backward)

    def start_step(self) -> int:
        """Enters the next step and returns its number, counted from 0."""
        if self.step is not None:
            raise ProgramError(
                f"ctx.step was entered inside step {self.step}; leave `with ctx.step():`, or call "
                "ctx.end_step(), before the next one begins"
            )
        self.step = self.steps_done
        return self.step

    def end_step(self) -> None:
        """Leaves the step, even after an exception: its number is not used again."""
        self.step = self.open = None
        self.stepping = self.stepped = False
        self.steps_done += 1
        self._seen = _Step()

    def start_microbatch(self, index: int) -> None:
        """Enters a micro-batch of the current step, possibly again."""
        if self.step is None:
            raise ProgramError(
                "ctx.microbatch was entered outside ctx.step; put it inside `with ctx.step():`, or "
                "between ctx.begin_step() and ctx.end_step()"
            )
        if self.open is not None:
            raise ProgramError(
                f"ctx.microbatch({index}) was entered inside micro-batch {self.open}; leave "
                "`with ctx.microbatch(...):`, or call ctx.end_microbatch(), before the next begins"
            )
        if index in self._seen.finished:
            raise self._twice(index, "and its backward had finished")
        self.open = index
        self._nodes.clear()
        self._seen.entries[index] = self._seen.entries.get(index, 0) + 1

    def end_microbatch(self) -> bool:
        """Leaves the open micro-batch, and returns whether it is finished.

        It is finished if it was entered only once and a gradient of it has arrived.
        """
        index, seen = self.open, self._seen
        assert index is not None
        self.open = None
        if seen.entries[index] > 1 or index not in seen.with_backward:
            return False
        seen.finished.add(index)
        return True

    def forward(self, part: str) -> None:
        """Notes that the model, or the part `part` of it, runs forward in the open micro-batch.

        Raises ProgramError if the part already ran when this micro-batch was entered before.
        """
        assert self.open is not None
        entry = self._seen.entries[self.open]
        if self._seen.forwarded.setdefault((self.open, part), entry) != entry:
            raise self._twice(self.open, "and the model ran forward each time")

    def backward(self, microbatch: int, *, sure: bool = True) -> None:
        """Notes that a gradient of a micro-batch has arrived.

        `sure` says whether the autograd graph identifies the micro-batch.  If it does not,
        `microbatch` is only the micro-batch that was current.  A backward that reaches several
        micro-batches belongs to none of them.
        """
        self._seen.with_backward.add(microbatch)
        self._notice_recomputation()
        running = running_backward()
        if not sure or running == -1:
            return
        if self._seen.reached.setdefault(running, microbatch) != microbatch:
            self._seen.reached[running] = None

    def call(self, module: str) -> tuple[int | None, bool]:
        """Returns the number of this call of a module, and whether the call is a recomputation.

        Calls are counted from 0 in each micro-batch.  A forward inside a backward is activation
        recomputation: its number is that of the call that it repeats, or None if it repeats none.
        """
        assert self.microbatch is not None
        place = self.microbatch, module
        now = nodes_made()
        recomputing = running_backward() != -1
        if recomputing:
            self.recomputed = True
            number = self._repeated(place)
        else:
            self._nodes.clear()
            number = self._seen.calls[place]
            self._seen.calls[place] += 1
        if number is not None:
            self._seen.log[place].append((now, number))
        return number, recomputing

    def _notice_recomputation(self) -> None:
        """Sets `recomputed` if forward code ran since the last gradient of the same backward.

        Autograd numbers the nodes that a thread creates.  A backward creates none, unless it runs
        forward code.  Hooks do not see all recomputation: recomputed modules may be called
        through `forward` alone, and a checkpoint may contain plain functions.
        """
        thread, made = threading.get_ident(), nodes_made()
        self.recomputed |= made > self._nodes.setdefault(thread, made)
        self._nodes[thread] = made

    def _repeated(self, place: tuple[int, str]) -> int | None:
        """The number of the earlier module call that a forward inside a backward repeats.

        `place` is the micro-batch and the module.  Returns None if no earlier call is found.

        The repeated calls cannot be counted, because checkpoints are recomputed in reverse order.
        Instead, this uses the numbers that autograd gives to nodes as they are created.  With
        reentrant checkpointing, the running node is that of the checkpoint, and the calls inside
        the checkpoint are the first ones after this node.  With non-reentrant checkpointing, the
        running node belongs to one of the calls inside the checkpoint, so the result may be wrong;
        but then no gradient arrives at the outputs of the recomputed modules.
        """
        made = running_node()
        if made is None:
            return None
        log = self._seen.log[place]
        key = (place[1], running_backward(), made)
        first = next((i for i, (when, _) in enumerate(log) if when > made), len(log))
        at = self._seen.replayed.get(key, first)
        if at >= len(log):
            return None
        self._seen.replayed[key] = at + 1
        return log[at][1]

    def _twice(self, index: int, why: str) -> ProgramError:
        return ProgramError(
            f"ctx.microbatch({index}) was entered twice in step {self.step}, {why}; give every "
            "micro-batch of a step its own number, as ctx.microbatches(total) does"
        )


def in_backward() -> bool:
    """Whether this thread is running a backward; forwards inside one are recomputations."""
    return running_backward() != -1
