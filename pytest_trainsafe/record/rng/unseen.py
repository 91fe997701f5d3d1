"""Finds what advanced torch's CPU generator without a draw that the ledger saw.

A state that is not the one that the last draw left was set by the program, or the generator was
advanced unseen: by a thread of another library's, or by code that calls no operator of torch's.
"""

from __future__ import annotations

import torch

from pytest_trainsafe.record.rng.states import distance, is_fresh, state_text

#: Numbers up to which an unseen advance is measured, and how often one rank does so.
MAX_NUMBERS, MAX_MEASURED = 100_000, 8

#: States that are remembered as ones that the program may go back to.
MAX_KNOWN = 4096


class LastState:
    """The state in which the last draw, or the last look, left torch's CPU generator."""

    def __init__(self, state: torch.Tensor) -> None:
        self._raw = state
        self._known: dict[str, None] = {}
        self._measured = 0
        self.text = state_text(state)
        self.set(state, self.text)

    def set(self, state: torch.Tensor, text: str) -> None:
        """The generator is in this state now, by a draw that was seen."""
        self._raw, self.text = state, text
        self._known[text] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def unseen(self, state: torch.Tensor, text: str) -> int | None:
        """How many 32-bit numbers were drawn unseen until the generator came to this state.

        None where the program set the state: it was seeded and has not drawn since, or went back
        to a state that it had before.  0 where one cannot tell: it was set to a state that the
        ledger did not see, or more than MAX_NUMBERS were drawn.
        """
        if text == self.text or is_fresh(text) or text in self._known:
            return None
        if self._measured >= MAX_MEASURED:
            return 0
        self._measured += 1
        return distance(self._raw, state, MAX_NUMBERS)
