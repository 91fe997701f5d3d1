"""Finds out whether the axes "recompute" and "compile" took effect.  No recorded tensor shows it.

Called when a program has returned.  `judges/compare/guards/in_effect.py` reads the results from the
trace.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.compat.compiler import compiled_regions
from pytest_trainsafe.record.clock import Clock


def consequences(clock: Clock, compiled_before: int) -> Iterator[str]:
    """Yields those of the axes "recompute" and "compile" that took effect on this rank.

    `compiled_before` is the value of `compiled_regions` before the program ran.
    """
    if clock.recomputed:
        yield "recompute"
    if compiled_regions() > compiled_before:
        yield "compile"
