"""The order in which ranks that share a process run, as a Schedule draws it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pytest_trainsafe.core.schedule import Schedule


class Order:
    """Chooses which of several ranks runs next; two of one Schedule choose alike."""

    def __init__(self, schedule: Schedule) -> None:
        self._drawn = None if schedule.seed is None else random.Random(schedule.seed)

    def next(self, ranks: Sequence[int]) -> int:
        """One of the ranks, which are in ascending order."""
        return ranks[0] if self._drawn is None else self._drawn.choice(ranks)
