"""Noted: what the loss is computed with, and what a loop does to gradients, is as in other runs.

The observer notes the constants in the graphs of losses and how gradients are changed before a step
(`instrument/slips/notes/`), each under a name.  A claim says what one name of one program stands
for, so it is checked on this program only.  What differs in healthy runs, such as a factor that
follows a schedule, the norm of a clipped gradient or the number of tokens, has no rule.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.events import Change
from pytest_trainsafe.judges.learn.events.slips import (
    BITS,
    FACTOR,
    NOTED,
    ORDER,
    REACH,
    VALUES,
    noted_in,
)
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import OWN, Explanation
from pytest_trainsafe.judges.learn.relations.conduct.recorded import (
    RecordedRelation,
    TextChecker,
    texts_of,
)
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

#: How much of a set may be taken, since two values may have one place in it.
_TAKEN = BITS // 8
#: In so many steps the notes of one name are judged.
_STEPS = 2
#: How exactly factors are equal.
_EXACT = 1.02


class Noted(RecordedRelation):
    """What is noted under the name `about` is `value`."""

    name = "noted"
    named = True
    attribute = NOTED
    forms = ({"about": str, "value": str},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes what has one value in a run; of the values of a weight, all of them."""
        for frame in frames:
            found: dict[str, set[str]] = defaultdict(set)
            for about, value in _notes(frame):
                found[about].add(value)
            for about, values in found.items():
                value = _proposed(about, values)
                if value:
                    yield hypothesis("noted", about=about, value=value)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each note under the name of a claim."""
        by_name: dict[str, list[Hypothesis]] = defaultdict(list)
        for claim in claims:
            by_name[claim.text("about")].append(claim)
        for frame in frames:
            rows, texts = texts_of(frame, NOTED)
            places: dict[str, list[int]] = defaultdict(list)
            notes = [noted_in(text) for text in texts]
            for at, (about, _) in enumerate(notes):
                places[about].append(at)
            for about, of_name in by_name.items():
                here = places.get(about, [])
                if not here:
                    continue
                records = frame.change_records(rows[here])
                for claim in of_name:
                    known = [_keeps(claim, notes[each][1], strict=True) for each in here]
                    found.add(claim, records, np.array(known, bool))

    def prior(self, claim: Hypothesis) -> int:
        """`OWN`: the names belong to one program."""
        return OWN

    def judge(self, text: str, claim: Hypothesis) -> tuple[bool, str]:
        """Whether a note is no other than that of the claim, or has another name."""
        about, value = noted_in(text)
        passed = about != claim["about"] or _keeps(claim, value, strict=False)
        return passed, "" if passed else f"it is {value}"

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges the notes of the first steps in which there is one of a name.

        Runs are learned from for longer: what differs in one step of ten is equal in the first
        steps of a few runs by chance, and would break the claim in another run.
        """
        return _Checker(self, watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        about, value = claim.text("about"), claim.text("value")
        if about.startswith(FACTOR):
            return Explanation(
                f"the {about} between the backward and the step is {value}",
                "gradients are divided or scaled once more or not at all, or by another number",
            )
        if about.startswith(REACH):
            return Explanation(
                f"the indices of {about.removeprefix(f'{REACH} of ')} reach the last row",
                "the numbers in a batch are not shifted by what comes before, or are those of "
                "something else",
            )
        if about.startswith(VALUES):
            return Explanation(
                f"the frequent weights of {about.removeprefix(f'{VALUES} of ')} are those of the "
                f"set {value}",
                "a weight, a mask or the share of dropout is computed otherwise",
            )
        if about.startswith(ORDER):
            return Explanation(
                f"the {about} is {value}",
                "an operand, a factor or an option of an operator is at another place",
            )
        return Explanation(f"{about} is {value}", "a factor, an option or a dimension is another")


class _Checker(TextChecker):
    def __init__(self, relation: Noted, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(relation, watches, contexts)
        self._by_name: dict[str, list[Watch]] = defaultdict(list)
        for watch in watches:
            self._by_name[watch.claim.text("about")].append(watch)
        self._steps: dict[str, set[object]] = defaultdict(set)

    def watches_for(self, text: str, change: Change) -> Iterable[Watch]:
        about, _ = noted_in(text)
        if about not in self._by_name:
            return ()
        steps = self._steps[about]
        if len(steps) < _STEPS:
            steps.add(change.meta.get("step"))
        return self._by_name[about] if change.meta.get("step") in steps else ()


def _notes(frame: Frame) -> Iterator[tuple[str, str]]:
    return map(noted_in, texts_of(frame, NOTED)[1])


def _proposed(about: str, values: Collection[str]) -> str:
    """What to claim of a name that has these values in one run; "" for nothing."""
    if about.startswith(VALUES):
        union = 0
        for each in values:
            union |= _sets(each)[0]
        return f"{union:x}" if union.bit_count() <= _TAKEN else ""
    if len(values) != 1:
        return ""
    (value,) = values
    if about.startswith(REACH):
        return value if value == "all" else ""
    # A clipping may leave gradients as they are in some runs, and multiply others.
    return "" if about.startswith(FACTOR) and value in ("none", "1", "unknown") else value


def _keeps(claim: Hypothesis, value: str, strict: bool) -> bool:
    """Whether a note keeps a claim.

    A strict answer is for learning: what keeps a claim by little may break it in another run.
    """
    about, wanted = claim.text("about"), claim.text("value")
    if about.startswith(VALUES):
        often, mostly = _sets(value)
        return not (often if strict else mostly) & ~int(wanted, 16)
    if about.startswith(REACH) and value == "half":
        return not strict
    if about.startswith(FACTOR) and not strict:
        # A clipping that was not needed before makes all factors smaller.
        return value == "unknown" or _number(value) <= float(wanted) * _EXACT
    return value == wanted


def _number(factor: str) -> float:
    """A factor as a number; a large one for "none", which is no change at all."""
    return math.inf if factor == "none" else float(factor)


def _sets(value: str) -> tuple[int, int]:
    """The set of the frequent values, and of the most frequent ones."""
    often, _, mostly = value.partition(" ")
    return int(often, 16), int(mostly, 16)
