"""Finds the line that draws the wrong initial values of a parameter, or that seeds the draws.

Called by `localize/initial.py`.  The ledger of random draws has these lines.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.align.copies import neighbours
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.judgement import lead_of
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE, Place, own
from pytest_trainsafe.judges.compare.patterns.rows import MISPLACED
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import DrawEvent
from pytest_trainsafe.trace.rng.ledger import first_apart, initial_draws

#: The patterns of values that ranks drew from wrong streams.
_SEEDED = frozenset({"seeded apart", "seeded alike"})


def drawn_at(
    failed: Comparison,
    id: TensorId,
    candidate: Trace,
    reference: Trace | None,
    of_class: Place,
) -> Place:
    """The program's line that seeds or draws the initial values of `id`, and what it does.

    The place of the module's class, `of_class`, follows it; it is the result if no line is known,
    or if the values are right and the ranks have them at wrong places.
    """
    lead = lead_of([f for f in failed.findings if f.verdict == "fail"])
    if lead.pattern is not None and lead.pattern.name in MISPLACED:
        return of_class
    if lead.pattern is not None and lead.pattern.name in _SEEDED:
        draw = next(_from_wrong_streams(candidate), None)
        found = NOWHERE if draw is None else _seeded(draw)
    else:
        lines = {each.line for each in _of_shape(id, candidate, reference)}
        what = Clause(f"draws numbers in the shape of {id.path}")
        found = Place(lines.pop() if len(lines) == 1 else "", (what,))
    if not own(found.source) or found.source == of_class.source:
        return of_class
    if not of_class:
        return found
    cls, *others = of_class.clauses
    return found.and_also(at(str(cls), of_class.source), *others)


def _from_wrong_streams(candidate: Trace) -> Iterator[DrawEvent]:
    """First the draw that two ranks made from different states, else the first one of all."""
    for _, one, other in neighbours(candidate):
        if pair := first_apart(one, other):
            yield pair[0]
    yield from initial_draws(candidate.ranks[0])


def _seeded(draw: DrawEvent) -> Place:
    """The line that gave the generator of a draw its seed, or else that draws."""
    if own(draw.seeded):
        return Place(draw.seeded, (Clause("seeds the generator"),))
    return Place(draw.line, (Clause("draws"),))


def _of_shape(id: TensorId, candidate: Trace, reference: Trace | None) -> Iterator[DrawEvent]:
    """The draws of a rank's initialisation in the shape of a parameter or of the rank's part."""
    there = () if reference is None else reference.holders(id)
    whole = {tuple(event.shape) for _, event in there}
    for rank, event in candidate.holders(id)[:1]:
        shapes = whole | {tuple(event.shape)}
        yield from (draw for draw in initial_draws(rank) if draw.shape in shapes)
