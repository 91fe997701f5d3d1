"""Finds a cast to a narrower dtype that the candidate makes and its reference does not.

Rounding to that dtype makes errors of its size, which nothing else makes by chance in float64.  So
the candidate runs once more, and its casts are watched, only if the first error has such a size.
Called by `localize/search.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.rungs.table import DTYPES, rung_named
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Cast
from pytest_trainsafe.trace.reader import Trace

#: The relative error of a tensor that is rounded once is about a fifth of its dtype's epsilon: the
#: rest of this range is for tensors of which a part is rounded, or that add up several roundings.
LEAST, MOST = 1 / 64, 4.0


def with_cast(
    found: Located, first: Finding, rung: RungTraces, watched: Callable[[], Trace | None]
) -> Located:
    """The result of a localisation, begun with the line of the cast that makes the first error.

    It is `found` itself if no such cast is seen.  `watched` runs the candidate and watches casts;
    it returns None if that fails.
    """
    rounds = rung_named(rung.candidate.manifest.dtype).epsilon
    narrower = (name for name in DTYPES if rung_named(name).epsilon > rounds)
    if rung.numbers.exact or not any(_is_rounding(first, name) for name in narrower):
        return found
    trace = watched()
    known = {cast.dtype for cast in _casts(rung.reference)}
    casts = [] if trace is None else [each for each in _casts(trace) if each.dtype not in known]
    cast = next((each for each in casts if each.at and _is_rounding(first, each.dtype)), None)
    if cast is None:
        return found
    text = (
        f"the candidate casts to {cast.dtype} at {relative(cast.at)}, and the reference does not; "
        "the error has the size of this rounding"
    )
    clauses = [Clause(f"casts to {cast.dtype}, which the reference does not")]
    if found.source:
        own, *others = found.clauses
        clauses += [at(str(own), found.source), *others]
    rows = ("casts", text), *found.rows
    return replace(found, rows=rows, source=cast.at, clauses=tuple(clauses))


def _is_rounding(first: Finding, dtype: str) -> bool:
    """Whether the error of a finding is as large as that of rounding to a dtype."""
    if dtype not in DTYPES or first.error is None:
        return False
    epsilon = torch.finfo(rung_named(dtype).dtype).eps
    return LEAST * epsilon <= first.error <= MOST * epsilon


def _casts(trace: Trace) -> list[Cast]:
    return [cast for rank in trace.ranks for cast in rank.events_of(Cast)]
