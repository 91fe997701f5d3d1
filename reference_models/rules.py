"""Rules of Points that the reference programs share.  Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe.reference_models.config import VOCABULARY
from pytest_trainsafe.sweep.point import Point


def vocabulary_over_tp(point: Point, _arguments: Mapping[str, object]) -> str | None:
    """The vocabulary is cut over tp."""
    if VOCABULARY % point.size("tp"):
        return f"the vocabulary of {VOCABULARY} is not divisible by tp={point.size('tp')}"
    return None


def sequence_in_chunks(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Zig-zag cuts the sequence in 2 * cp chunks; sp cuts what a cp rank holds over tp."""
    length, cp, tp = int(str(arguments["seq_len"])), point.size("cp"), point.size("tp")
    if cp > 1 and length % (2 * cp):
        return f"seq_len={length} is not divisible by 2*cp={2 * cp}"
    if point.get("sp", False) and length // cp % tp:
        return f"seq_len/cp={length // cp} is not divisible by tp={tp}, as sp needs"
    return None
