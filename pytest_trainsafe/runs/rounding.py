"""By which dtype's rounding a rung is judged: its own, or that of what the program casts to.

Called by the session, which makes noise of that size, and by the ladder.
"""

from __future__ import annotations

from pytest_trainsafe.record.inject.perturb import EPSILON
from pytest_trainsafe.trace.facts import Cast
from pytest_trainsafe.trace.reader import Trace


def rounding_of(reference: Trace) -> str:
    """The dtype whose rounding limits what the reference can be compared with; "float8" is FP8.

    Casts to FP8 limit no run in float64: a value would have to lie within 1e-16 of the edge
    between two codes for two correct runs to take different ones, so all take the same.  In
    float32 one of a few thousand does not, and what follows differs by steps of FP8.
    """
    cast = deciding_cast(reference)
    return cast.split()[0] if cast else reference.manifest.dtype


def deciding_cast(reference: Trace) -> str:
    """The cast that decides, "dtype file:line"; "" where the program makes none that matters."""
    casts = [cast for rank in reference.ranks for cast in rank.events_of(Cast)]
    narrowed = max(
        (cast for cast in casts if cast.dtype != "float8"),
        key=lambda cast: EPSILON[cast.dtype],
        default=None,
    )
    if narrowed is None and reference.manifest.dtype == "float64":
        return ""
    quantised = next((cast for cast in casts if cast.dtype == "float8"), None)
    decides = quantised or narrowed
    return str(decides) if decides is not None else ""
