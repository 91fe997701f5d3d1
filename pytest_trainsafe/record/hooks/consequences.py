"""The axes whose effect on a rank is visible in no tensor of its trace: recompute, compile.

Called when a program has returned.  `judge/compare/guards/in_effect.py` reads the notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.hooks.compiled import compiled_regions


def consequences(clock: Clock, compiled_before: int) -> Iterator[str]:
    """The axes that took effect on this rank: "recompute", "compile".

    `compiled_before` is the value of `compiled_regions` before the program ran.
    """
    if clock.recomputed:
        yield "recompute"
    if compiled_regions() > compiled_before:
        yield "compile"
