"""Finds the dtype that determines how large the rounding errors of a rung are.

This is the dtype of the rung, or a less precise dtype that the program casts to.  Called by
`Traces`, which adds noise of the size of this dtype's rounding errors, and by the ladder.
"""

from __future__ import annotations

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.trace.facts import Cast
from pytest_trainsafe.trace.reader import Trace


def rounding_of(reference: Trace, measuring: Trace | None = None) -> str:
    """The dtype that determines how large rounding errors of the reference are; "float8" is FP8.

    `measuring` is the reference in the dtype that measures the rounding of this one, if there is
    such a Run.  Its distance from `reference` then shows every other cast of `reference`, and only
    the casts that both take can be rounded without a trace of it.  But casts of autocast count:
    they round every layer, and one distance does not show which values they may turn, such as the
    sign of a small gradient, by which Adam steps.

    Casts to FP8 do not count in float64: two correct Runs would round a value to different FP8
    codes only if it lay within about 1e-16 of the boundary between them.  In float32, one value in
    a few thousand rounds differently, and later values then differ by steps of FP8.
    """
    cast = deciding_cast(reference, measuring)
    return cast.split()[0] if cast else reference.manifest.dtype


def deciding_cast(reference: Trace, measuring: Trace | None = None) -> str:
    """The cast that determines the result of `rounding_of`; "" if there is none.

    The cast is written as "dtype file:line".  In exact numbers no cast rounds.
    """
    rung = rung_named(reference.manifest.dtype)
    if rung.exact:
        return ""
    casts = _casts(reference)
    counted = casts
    if measuring is not None:
        autocasts = {dtype for rank in reference.ranks for dtype in rank.note("autocast")}
        counted = [*_casts(measuring), *(cast for cast in casts if cast.dtype in autocasts)]
    narrowed = max(
        (
            cast
            for cast in counted
            if rung_named(cast.dtype).host and rung_named(cast.dtype).epsilon > rung.epsilon
        ),
        key=lambda cast: rung_named(cast.dtype).epsilon,
        default=None,
    )
    if narrowed is None and rung.casts:
        return ""
    quantised = next((cast for cast in casts if not rung_named(cast.dtype).host), None)
    decides = quantised or narrowed
    return str(decides) if decides is not None else ""


def _casts(trace: Trace) -> list[Cast]:
    return [cast for rank in trace.ranks for cast in rank.events_of(Cast)]
