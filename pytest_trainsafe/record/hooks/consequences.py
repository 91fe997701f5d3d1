"""What an axis made a rank do that no tensor of its trace shows: recompute, compile.

Called when a program has returned.  `judge/compare/guards/in_effect.py` reads the notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.hooks.compiled import compiled_regions


def consequences(clock: Clock, compiled_before: int) -> Iterator[str]:
    """The axes whose consequences this rank had: "recompute", "compile".

    `compiled_before` is what `compiled_regions` gave before the program ran.
    """
    if clock.recomputed:
        yield "recompute"
    if compiled_regions() > compiled_before:
        yield "compile"
