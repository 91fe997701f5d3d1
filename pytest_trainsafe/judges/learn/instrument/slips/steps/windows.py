"""The micro-batches of one optimizer: how many a step takes, and whether gradients are dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

#: A first window is shorter if it is followed by so many that are as long as each other.
_NEXT = 3
#: An incomplete window is dropped on purpose, and a step is left out, but not so many in a row.
_DROPPED = 2


@dataclass(slots=True)
class Windows:
    """The windows of an optimizer: each is the micro-batches between two of its steps.

    `counts` has how many backwards added to the gradients of each step.  `inputs` has the inputs of
    this window's forwards, and `dropped` how many of them had gradients that were cleared.
    `before` is that number of the window before.
    """

    counts: list[int] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)
    dropped: int = 0
    before: int = 0

    def took(self, count: int) -> str:
        """Note a window; what is wrong if the first one was short, or ""."""
        self.counts.append(count)
        first, next_ones = self.counts[0], set(self.counts[1:])
        if len(self.counts) == 1 + _NEXT and len(next_ones) == 1 and first < min(next_ones):
            return f"{first} backward first, and {min(next_ones)} from then on"
        return ""

    def ended(self, untouched: bool) -> str:
        """End a window with a step; what is wrong if gradients were dropped in it, or "".

        `untouched` says that the step uses what the last backward left.  A method that computes
        gradients of several examples, and writes their combination, drops none.
        """
        dropped, before = self.dropped, self.before
        self.before, self.dropped = (dropped if untouched else 0), 0
        self.inputs.clear()
        if untouched and min(dropped, before) >= _DROPPED:
            return f"gradients of {dropped} micro-batches were cleared before the step, unused"
        return ""
