"""Which invariants hold for programs in general: the choice that makes the packs of the package.

`inference` keeps what the runs show, and a project reviews that for its own programs.  A pack that
is shipped meets programs that nobody reviewed it for, so an invariant must show more:

- its APIs can be observed for a pack;
- three programs keep it, in each scenario of its precondition, and each of them more than once;
- it is not broken by any program where it is learned from all others;
- its precondition reads the context of training and not the arguments of a call;
- it was at risk: what it compares had several values in the runs;
- it is not about what a library calls itself, or what an operator makes of its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.judge.learn.columns.frame import Frame, Records
from pytest_trainsafe.judge.learn.conditions import Features, Mark, Precondition
from pytest_trainsafe.judge.learn.evidence import Counts, Evidence, together
from pytest_trainsafe.judge.learn.inference.select import (
    confidence,
    invariant_of,
    without_implied,
)
from pytest_trainsafe.judge.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judge.learn.names import is_architecture
from pytest_trainsafe.judge.learn.relation import Relation
from pytest_trainsafe.judge.learn.run import ObservedRun
from pytest_trainsafe.judge.learn.use.deploy import LIBRARIES
from pytest_trainsafe.trace.observed.table import REQUIRES_GRAD

#: So many programs keep an invariant, and each so often in one of its runs.
PROGRAMS, EXAMPLES = 3, 2
#: A precondition has no more conditions than this.
CONDITIONS = 4
#: The confidence of an invariant in a program that it was not learned from.
CONFIDENCE = 0.75

#: Relations that compare a value with a value, which says nothing if the value never varies.
_COMPARING = ("agreement", "consistent", "argument", "output")


@dataclass(frozen=True, slots=True)
class General:
    """The chosen invariants, and how many others were left out for which reason."""

    invariants: tuple[Invariant, ...]
    left_out: Mapping[str, int]


@dataclass
class _Claim:
    """What the runs say of one claim: counts by program, examples by run, and distinct values."""

    counts: dict[str, Counts] = field(default_factory=dict)
    most: Counter[str] = field(default_factory=Counter)
    values: set[int] = field(default_factory=set)


def general(
    runs: Sequence[ObservedRun],
    relations: Mapping[str, Relation],
    counted: Collection[str] | None = None,
) -> General:
    """The invariants of runs that other programs are likely to keep.

    Of the programs, only those in `counted` count as support; None counts all.  The others may
    break what does not hold for them, which a precondition must then tell apart.
    """
    frames = [(run.program, [Frame(table) for table in run.tables]) for run in runs]
    chosen: list[Invariant] = []
    left_out: Counter[str] = Counter()
    for name in sorted(relations):
        relation = relations[name]
        kept = []
        for claim, seen in sorted(_seen(relation, frames).items(), key=lambda each: each[0].order):
            made = _choose(relation, claim, seen, counted)
            if isinstance(made, Invariant):
                kept.append(made)
            else:
                left_out[made] += 1
        strong, implied = without_implied(kept, {name: relation})
        chosen += strong
        left_out["implied by a stronger invariant"] += len(implied)
    invariants = tuple(sorted(chosen, key=lambda each: each.claim.order))
    return General(invariants, dict(sorted(left_out.items())))


def _seen(
    relation: Relation, runs: Sequence[tuple[str, Sequence[Frame]]]
) -> Mapping[Hypothesis, _Claim]:
    claims = sorted(
        {
            claim
            for _, frames in runs
            for claim in relation.hypotheses(frames)
            if _observable(claim) and not _internal(claim)
        },
        key=lambda claim: claim.order,
    )
    found: dict[Hypothesis, _Claim] = {claim: _Claim() for claim in claims}
    for program, frames in runs:
        examples = _Examples(found, frames)
        relation.examples(frames, claims, examples)
        for claim, counts in examples.counts().items():
            seen = found[claim]
            seen.counts[program] = together([seen.counts.get(program, []), counts])
            passed = sum(each for _, each, _ in counts)
            seen.most[program] = max(seen.most[program], passed)
    return found


class _Examples(Evidence):
    """Counts examples, and notes which values a claim compares."""

    def __init__(self, found: Mapping[Hypothesis, _Claim], frames: Sequence[Frame]) -> None:
        super().__init__()
        self._found, self._frames = found, frames

    def add(
        self,
        claim: Hypothesis,
        records: Records,
        passed: npt.NDArray[np.bool_],
        where: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        super().add(claim, records, passed, where)
        values = self._found[claim].values
        if claim.relation in _COMPARING and len(values) < 2:
            rows = records.rows if where is None else records.rows[where]
            frame = records.frame or self._frame_of(claim, records)
            values.update(_values(claim, frame, records.of_calls, rows))

    def _frame_of(self, claim: Hypothesis, records: Records) -> Frame:
        """The frame that calls are from."""
        api = claim.text("api")
        return next(
            frame
            for frame in self._frames
            if any(each.get(api) is records for each in (frame.groups, frame.attempts))
        )


def _values(
    claim: Hypothesis, frame: Frame, of_calls: bool, rows: npt.NDArray[np.int64]
) -> set[int]:
    """Up to two values of what a claim compares, as keys."""
    if not len(rows):
        return set()
    if of_calls:
        group = frame.attempts[claim.text("api")]
        slot = group.slots.get(claim.text("place"))
        if slot is None:
            return set()
        values = slot[np.searchsorted(group.rows, rows)]
        name = claim.text("property") or "value"
    else:
        values, name = frame.changes["after"][rows], "value"
    if claim.text("form") in ("requires_grad", "no_grad"):
        keys = frame.bits(values, REQUIRES_GRAD).astype(np.uint64)
    else:
        keys, has = frame.keys(values, name)
        contents, tensor = frame.keys(values, "digest" if name == "value" else name)
        keys = np.concatenate([keys[has], contents[tensor]])
    return {int(key) for key in np.unique(keys)[:2]}


def _choose(
    relation: Relation, claim: Hypothesis, seen: _Claim, counted: Collection[str] | None
) -> Invariant | str:
    """The invariant of a claim, or why it is left out."""
    made = invariant_of(relation, claim, seen.counts)
    if isinstance(made, str):
        return made
    if confidence(made, relation) < CONFIDENCE or not _supported(made.precondition, seen, counted):
        return "too few programs"
    if ("in_step", (False,)) in made.within:
        return "seen outside of steps only"
    if not _of_context(made.precondition):
        return "the precondition is about arguments, or long"
    if claim.relation in _COMPARING and len(seen.values) == 1:
        return "the value never varied"
    if not _holds_out(relation, claim, seen):
        return "a program breaks it that it was not learned from"
    return made


def _supported(precondition: Precondition, seen: _Claim, counted: Collection[str] | None) -> bool:
    """Whether enough programs keep the rule in each scenario."""
    repeated = {
        program
        for program, most in seen.most.items()
        if most >= EXAMPLES and (counted is None or program in counted)
    }
    for part in precondition.any_of:
        alone = Precondition((part,))
        programs = {
            program
            for program in repeated
            if any(passed and alone.holds(each) for each, passed, _ in seen.counts[program])
        }
        if len(programs) < PROGRAMS:
            return False
    return True


def _of_context(precondition: Precondition) -> bool:
    count = sum(map(len, precondition.any_of))
    return count <= CONDITIONS and not any(
        field.startswith(("arg.", "self.")) for field in precondition.fields
    )


def _holds_out(relation: Relation, claim: Hypothesis, seen: _Claim) -> bool:
    """Whether each program keeps the invariant that is learned from the others."""
    for program, counts in seen.counts.items():
        failing = [features for features, _, failed in counts if failed]
        if not failing:
            continue
        others = {name: each for name, each in seen.counts.items() if name != program}
        made = invariant_of(relation, claim, others)
        if (
            isinstance(made, Invariant)
            and confidence(made, relation) >= CONFIDENCE
            and any(_applies(made, features) for features in failing)
        ):
            return False
    return True


def _applies(invariant: Invariant, features: Features) -> bool:
    if not invariant.precondition.holds(features):
        return False
    found = {name: features.get(name, Mark.SAME) for name, _ in invariant.within}
    return all(
        isinstance(found[name], Mark) or found[name] in values for name, values in invariant.within
    )


def _apis(claim: Hypothesis) -> list[str]:
    return [claim.text(name) for name in ("api", "inner") if claim.text(name)]


def _observable(claim: Hypothesis) -> bool:
    return all(api.partition(".")[0] in LIBRARIES for api in _apis(claim))


def _internal(claim: Hypothesis) -> bool:
    """Whether a claim is about what a library does, and not about what a program does with it."""
    api, inner = claim.text("api"), claim.text("inner")
    if claim.relation == "contain":
        return bool(inner) and api.partition(".")[0] == inner.partition(".")[0]
    if claim.relation == "output":
        return is_architecture(api) or claim["form"] not in ("finite", "nonzero")
    # What an object is set to is followed as a variable.
    settings = claim.text("place").startswith("self.")
    return claim.relation == "agreement" and (is_architecture(api) or settings)
