"""Finds what advanced torch's CPU generator without a draw that the ledger intercepted.

If the state is not the one that the last draw left, either the program set it, or the generator
advanced unseen: in a thread of another library, or by code that calls no torch operator.
"""

from __future__ import annotations

import torch

from pytest_trainsafe.record.rng.states import distance, is_fresh, state_text

#: Numbers up to which an unseen advance is measured, and how often one rank does so.
MAX_NUMBERS, MAX_MEASURED = 100_000, 8

#: States that are remembered as ones that the program may go back to.
MAX_KNOWN = 4096


class LastState:
    """The state of torch's CPU generator after the last draw or the last look."""

    def __init__(self, state: torch.Tensor) -> None:
        self._raw = state
        self._known: dict[str, None] = {}
        self._measured = 0
        self.text = state_text(state)
        self.set(state, self.text)

    def set(self, state: torch.Tensor, text: str) -> None:
        """Stores the current state, after a draw that was intercepted."""
        self._raw, self.text = state, text
        self._known[text] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def unseen(self, state: torch.Tensor, text: str) -> int | None:
        """The number of 32-bit numbers that were drawn unseen before the generator had this state.

        None if the program set the state: it seeded the generator and has not drawn since,
        or restored an earlier state. 0 if this is unknown: the program set a state that the
        ledger did not see, or more than MAX_NUMBERS were drawn.
        """
        if text == self.text or is_fresh(text) or text in self._known:
            return None
        if self._measured >= MAX_MEASURED:
            return 0
        self._measured += 1
        return distance(self._raw, state, MAX_NUMBERS)
