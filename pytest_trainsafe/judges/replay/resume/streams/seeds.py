"""Recognises generators that the program seeds during the training, and with another seed.

The state of such a generator needs no checkpoint: it follows from what the program seeds it with,
such as the step or the epoch.
"""

from __future__ import annotations

from pytest_trainsafe.core.finding import StreamSubject
from pytest_trainsafe.judges.replay.resume.difference import Difference
from pytest_trainsafe.judges.replay.resume.state import state_after
from pytest_trainsafe.judges.replay.rng.draws import Draw, describe_draw, when
from pytest_trainsafe.trace.facts import TrainingState
from pytest_trainsafe.trace.reader import RankTrace
from pytest_trainsafe.trace.rng.events import (
    NUMPY,
    PYTHON,
    DrawEvent,
    UnseenDraws,
    position,
)

_CAUSE = (
    "the program seeds this generator during the training, so its state needs no checkpoint: "
    "restore what the seed follows from, such as the step, the epoch or the order of the examples"
)


#: How the names of generators from `numpy.random.default_rng` begin.
_NUMPY_OWN = "numpy.random.Generator"


def are_seeded(a: Draw, b: Draw, saved: RankTrace, resumed: RankTrace, steps: int) -> bool:
    """Whether the program has just seeded the generators of a draw in both Runs.

    `a` is the draw in the uninterrupted Run, and `b` the same draw in the resumed one. `steps` is
    the number of steps before the checkpoint.
    """
    return _seeded(a, saved, steps) and _seeded(b, resumed, steps)


def _seeded(draw: Draw, rank: RankTrace, steps: int) -> bool:
    state, name = draw.event.before, draw.event.generator
    if name.startswith(_NUMPY_OWN):
        # Their states have no position; one that did not exist before the step is a new one.
        begun = state_after(rank, steps)
        return begun is not None and name not in begun.of("rng")
    if not _is_fresh(name, state):
        return False
    kind = name.partition(" of ")[0]
    for event in rank.events[: draw.order]:
        if isinstance(event, DrawEvent | UnseenDraws):
            # A draw without an operator may be the program's seeding itself.
            drawn = not isinstance(event, DrawEvent) or event.operator != ""
            if drawn and event.generator.partition(" of ")[0] == kind and event.after == state:
                return False
        elif (
            isinstance(event, TrainingState)
            and event.steps < steps
            and event.of("rng").get(name) == state
        ):
            return False
    return True


def _is_fresh(generator: str, state: str) -> bool:
    """Whether a state is that of a generator that has drawn nothing since it was seeded."""
    # Python's and NumPy's generators begin at the end of a block, torch's at the beginning.
    return position(state) == (624 if generator in (PYTHON, NUMPY) else 0)


def seeded_difference(a: Draw, b: Draw) -> Difference:
    """Describes the draw `b` of the resumed Run, before which the generator got another seed.

    `a` is the same draw in the uninterrupted Run.
    """
    name, rank = b.event.generator, b.rank.rank
    seed, wanted = b.event.seed, a.event.seed
    known = seed and wanted and seed != wanted
    how = f"{seed}, not {wanted}" if known else "another seed than in the uninterrupted training"
    before = f"before {describe_draw(b)} in" if b.event.operator else "in"
    return Difference(
        "rng",
        f"{name} of rank {rank} is seeded with {how}, {before} {when(b)}",
        _CAUSE,
        rank,
        subject=StreamSubject(name, rank),
        source=b.event.line,
        evidence=(("generator", name), ("seed", seed), ("expected", wanted)),
    )
