"""Turns: runs the ranks of a group as threads, one at a time.

A rank runs until it waits for another one (`wait`) or ends; then the next one runs.  So it is known
at once when no rank can go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_trainsafe.launch.threads.schedule import Order

#: The prefix of the names of the threads in which ranks run.
THREAD = "trainsafe-rank-"


class Event(Protocol):
    """Something that a rank waits for."""

    @property
    def done(self) -> bool:
        """Whether it has happened."""
        ...

    def __str__(self) -> str:
        """A clause that says what the rank waits for."""
        ...


class Stopped(BaseException):
    """Raised in ranks that wait after their group has been stopped; the message says why."""


def _closed() -> threading.Lock:
    """A lock that one thread waits for and another one releases, as often."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True)
class _Rank:
    """One rank: `gate` lets its thread run, `waits` is what it waits for.

    A `patient` rank runs only when no other one can.
    """

    body: Callable[[], None]
    gate: threading.Lock = field(default_factory=_closed)
    waits: Event | None = None
    patient: bool = False
    started: bool = False
    ended: bool = False

    @property
    def can_run(self) -> bool:
        return not self.ended and (self.waits is None or self.waits.done)


class Turns:
    """The turns of some ranks.

    `order` chooses who runs next.  `exchange` is called with the rank whose turn ends, or None if
    it has ended, and the one whose turn begins.  `on_stuck` is called once, with a sentence for
    each rank that waits, when no rank can run although some have not ended; if it returns, Stopped
    is raised in these ranks.
    """

    def __init__(
        self,
        order: Order,
        exchange: Callable[[int | None, int], None],
        on_stuck: Callable[[list[str]], None],
    ) -> None:
        self._order, self._exchange, self._on_stuck = order, exchange, on_stuck
        self._ranks: list[_Rank] = []
        self._all_ended = threading.Event()
        self._stopped = ""
        self._thread_of: dict[int, int] = {}
        #: The rank whose turn it is.
        self.running = 0

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Runs `bodies[rank]` for each rank, and returns when all have ended.

        Bodies must not raise.
        """
        self._ranks = [_Rank(body) for body in bodies]
        self._pass_on(None)
        self._all_ended.wait()

    def wait(self, event: Event, *, patient: bool = False) -> None:
        """Returns when `event` is done; other ranks run until then.

        With `patient`, they run until none of them can go on.  Raises Stopped if the group was
        stopped.
        """
        me = self.mine()
        if patient and event.done:
            self._ranks[me].patient = True
            self._pass_on(me)
        while not event.done:
            if self._stopped:
                raise Stopped(self._stopped)
            self._ranks[me].waits, self._ranks[me].patient = event, patient
            self._pass_on(me)
        self._ranks[me].waits, self._ranks[me].patient = None, False

    def offer(self) -> None:
        """Lets another rank run, if one can, before this one continues.

        Ranks that do so again and again run one after the other, so that each gets its turn.
        """
        me = self.mine()
        others = [each for each in self._able() if each != me]
        if others and not self._stopped:
            later = [each for each in others if each > me]
            self._switch(me, self._order.next(later or others))

    def stop(self, why: Sequence[str]) -> None:
        """Ends the group because the ranks cannot go on; raises Stopped.

        `why` are sentences that say why.
        """
        if not self._stopped:
            self._stopped = "; ".join(why) or "the ranks cannot go on"
            self._on_stuck(list(why))
        raise Stopped(self._stopped)

    @property
    def is_stopped(self) -> bool:
        """Whether the group was stopped because its ranks could not go on."""
        return bool(self._stopped)

    def mine(self) -> int:
        """The rank of the calling thread; raises RuntimeError if it is not the thread of a rank."""
        found = self._thread_of.get(threading.get_ident())
        if found is None:
            raise RuntimeError(
                "a thread that the program started communicates with other ranks; with the "
                "launcher `threads` only the thread that runs the program may: use "
                "--trainsafe-launcher warm"
            )
        return found

    def thread_ids(self) -> dict[int, int]:
        """The identifier of each rank's thread, by rank; of those that have begun."""
        return {rank: ident for ident, rank in self._thread_of.items()}

    def _able(self) -> list[int]:
        able = [number for number, rank in enumerate(self._ranks) if rank.can_run]
        return [each for each in able if not self._ranks[each].patient] or able

    def _pass_on(self, me: int | None) -> None:
        """Lets another rank run; returns when it is this one's turn again."""
        able = self._able()
        if able:
            self._switch(me, self._order.next(able))
            return
        waiting = {n: rank for n, rank in enumerate(self._ranks) if not rank.ended}
        if not waiting:
            self._all_ended.set()
            return
        if not self._stopped:
            why = [f"rank {number} waits {rank.waits}" for number, rank in waiting.items()]
            self._stopped = "; ".join(why)
            self._on_stuck(why)
        if me is None:  # each rank that waits raises Stopped when its turn comes
            self._switch(None, min(waiting))

    def _switch(self, me: int | None, to: int) -> None:
        if me == to:
            return
        self._exchange(me, to)
        self.running = to
        rank = self._ranks[to]
        if rank.started:
            rank.gate.release()
        else:
            rank.started = True
            name = f"{THREAD}{to}"
            threading.Thread(target=self._live, args=(to,), name=name, daemon=True).start()
        if me is not None:
            self._ranks[me].gate.acquire()

    def _live(self, number: int) -> None:
        self._thread_of[threading.get_ident()] = number
        rank = self._ranks[number]
        try:
            rank.body()
        finally:
            rank.ended = True
            del self._thread_of[threading.get_ident()]
            self._pass_on(None)
