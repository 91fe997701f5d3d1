"""Schedule: the freedom that real ranks have, decided for ranks that run one at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: When an asynchronous collective takes its input or writes its output: when the last rank calls
#: it, which is as early as it can, or when the rank waits for it, as late as it must.
Moment = Literal["issue", "wait"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """When asynchronous collectives happen, and which rank runs next.

    `output` says when a rank sees the result of an asynchronous collective.  `taken` says when its
    input is read: as it is at the call, or as it is when the collective completes.  A correct
    program computes the same in all schedules.  `seed` draws the rank that runs next from those
    that can; None takes the lowest one.
    """

    output: Moment = "issue"
    taken: Moment = "issue"
    seed: int | None = None

    def order(self) -> Order:
        """A new order of ranks; two of one schedule choose alike."""
        return Order(None if self.seed is None else random.Random(self.seed))


class Order:
    """Chooses which of several ranks runs next."""

    def __init__(self, drawn: random.Random | None) -> None:
        self._drawn = drawn

    def next(self, ranks: Sequence[int]) -> int:
        """One of the ranks, which are in ascending order."""
        return ranks[0] if self._drawn is None else self._drawn.choice(ranks)
