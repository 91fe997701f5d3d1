"""Periodic: every variable of a kind changes at least once in every N steps, or never.

The parameters of a model change in every step, if they had a gradient and the learning rate was
not zero; running statistics do not change while a model is evaluated.  A vector says nothing: the
gradient of a bias before a norm is made of rounding errors, and what is added to a few elements may
round away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, by_variable, variable_of
from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints, Records, combine
from pytest_trainsafe.judges.learn.conditions import Feature, Features
from pytest_trainsafe.judges.learn.events.events import Change, Value
from pytest_trainsafe.judges.learn.events.slips import TEXTS
from pytest_trainsafe.judges.learn.events.table import IS_TENSOR, NONE
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.features import is_empty, number_of
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import CHOICE, OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

#: The longest period, in steps.
_LONGEST = 8
_LEAST = 0.05
_RATE = "optimizer.param_groups", "lr"
_DATA = "data"
#: What an optimizer keeps of gradients.  While that is zero, there is nothing that could change: no
#: gradient has come yet, as to an expert that no example has chosen.
_STATE = "optimizer.state"
#: What a scheduler counts of the losses that it is given: when they fall says nothing of the loop.
_OF_LOSSES = {("scheduler", name) for name in ("best", "num_bad_epochs", "cooldown_counter")}


class Periodic(RelationBase):
    """`attribute` of each `variable` changes at least once in `period` steps; never if it is 0.

    `variable` is a kind of object, such as "torch.nn.Parameter", and `attribute` is, for example,
    "data".
    """

    name = "periodic"
    forms = ({"variable": str, "attribute": str, "period": tuple(range(_LONGEST + 2))},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes each kind of variable with the periods in which it was seen to change."""
        for frame in frames:
            for name, _, quiet in _moments(frame, None):
                if name in _OF_LOSSES or (name[0] == _STATE and name[1] != "step"):
                    continue  # what is added to a moment may round away, or be zero
                last = int(min(quiet.max(), _LONGEST))
                if (quiet == 0).mean() >= _LEAST:
                    # Only 1 and the longest rest: a period in between says less than 1, and
                    # fails in examples in which the longest one holds.
                    for period in {1, last + 1} if last < _LONGEST else {1}:
                        yield _claim(name, period)
                if (quiet > 0).mean() >= _LEAST:
                    yield _claim(name, 0)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each object at the end of each step."""
        wanted: dict[tuple[str, str], list[Hypothesis]] = defaultdict(list)
        for claim in claims:
            wanted[claim.text("variable"), claim.text("attribute")].append(claim)
        for frame in frames:
            for name, records, quiet in _moments(frame, wanted.keys()):
                for claim in wanted[name]:
                    found.add(claim, records, _kept(quiet, claim))

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the value, which would only restate the claim."""
        return field == "value"

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """The same claim with each longer period, which it implies."""
        period = claim["period"]
        if isinstance(period, int) and period > 0:
            name = claim.text("variable"), claim.text("attribute")
            for longer in range(period + 1, _LONGEST + 2):
                yield _claim(name, longer)

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Whether one claim says that a variable never changes, the other that it always does.

        "Always" means in every step.
        """
        same = all(claim[name] == other[name] for name in ("variable", "attribute"))
        return same and {claim["period"], other["period"]} == {0, 1}

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        `CHOICE` for the claim that parameters change in every step, because networks may train in
        turns or warm up from a rate of zero.  `OWN` for all other claims: such a claim is checked
        only on the programs from which it was learned.
        """
        weights = claim["variable"] == "torch.nn.Parameter" and claim["attribute"] == "data"
        return CHOICE if weights and claim["period"] == 1 else OWN

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the variable, its gradient and the learning rate.

        Preconditions use the last two: a parameter without a gradient, or with a learning rate of
        zero, need not change.
        """
        name = claim.text("variable"), claim.text("attribute")
        return Needs(frozenset(), frozenset({name, (name[0], "grad"), _RATE}))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that collects the changes of a step and judges them at its end."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        what = f"{claim['attribute']} of every {claim['variable']}"
        if claim["period"] == 0:
            return Explanation(f"{what} never changes", "something writes to it by mistake")
        steps = "every step" if claim["period"] == 1 else f"every {claim['period']} steps"
        return Explanation(
            f"{what} changes in {steps}",
            "it is frozen, it is not in the optimizer, or its gradient is missing",
        )


@dataclass(slots=True)
class _Seen:
    """What happened to an attribute of an object in the current step.

    `last` is its last Change or sample in the step, and `changed` whether its value changed.
    """

    last: Change
    changed: bool = False


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._watches = by_variable(watches)
        self._now: dict[tuple[str, str], _Seen] = {}
        self._quiet: dict[tuple[str, str], int] = {}
        self._graded: set[str] = set()
        self._zero_rate = False

    def reads_calls(self, api: str) -> bool:
        return False

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return variable in self._watches or variable == _RATE or variable[1] == "grad"

    def changed(self, change: Change) -> None:
        name = variable_of(change)
        if change.attribute == "grad" and _has_gradient(change):
            self._graded.add(change.object)
        if name == _RATE and number_of(change.after) == 0:
            self._zero_rate = True
        if name in self._watches:
            key = change.object, change.attribute
            seen = self._now.setdefault(key, _Seen(change))
            if change.changed or not seen.changed:  # a report shows the change, not the sample
                seen.last = change
            seen.changed |= change.changed

    def step_ended(self, step: int) -> None:
        for key, seen in self._now.items():
            quiet = 0 if seen.changed else self._quiet.get(key, 0) + 1
            self._quiet[key] = quiet
            if variable_of(seen.last)[0] == _STATE and is_empty(seen.last.after):
                continue
            if key[1] == _DATA and _is_vector(seen.last.after):
                continue
            for watch in self._watches[variable_of(seen.last)]:
                self._judge(watch, seen.last, quiet)
        self._now, self._graded, self._zero_rate = {}, set(), False

    def _features_of(self, last: Change, graded: bool) -> Features:
        return self.contexts.distinct(_features(self.of_change(last), graded, self._zero_rate))

    def _judge(self, watch: Watch, last: Change, quiet: int) -> None:
        graded = last.object in self._graded
        watch.example(
            lambda: self._features_of(last, graded),
            bool(_kept(np.array([quiet]), watch.claim)[0]),
            last,
        )


def _moments(
    frame: Frame, wanted: Collection[tuple[str, str]] | None
) -> Iterable[tuple[tuple[str, str], Records, Ints]]:
    """Yields each kind of variable, with a record of each object at the end of each step.

    A kind is a pair such as ("torch.nn.Parameter", "data").  `wanted` has the kinds to yield; None
    stands for all.  The third value has, for each record, the number of steps since its object
    changed.
    """
    changes = frame.changes
    graded, zero, flat = _graded(frame), _zero_rate(frame), _flat_shapes(frame)
    for code, name in enumerate(frame.variables):
        if name[1] in TEXTS or (wanted is not None and name not in wanted):
            continue
        rows = frame.at_step_ends(code)
        if not len(rows):
            continue
        objects, steps = changes["object"][rows], frame.interval_of_change[rows]
        every = np.flatnonzero((frame.variable_of_change == code) & changes["changed"])
        moments = np.unique(_moment(frame, every))
        changed = np.isin(_moment(frame, rows), moments)
        plain = frame.change_records(rows)
        has = np.isin(_moment(frame, rows), graded)
        rate = np.isin(steps, zero)
        codes, first = combine(plain.codes, has, rate)
        features = [
            _features(plain.features[int(plain.codes[at])], bool(has[at]), bool(rate[at]))
            for at in first
        ]
        quiet = _quiet(objects, changed)
        if name[0] == _STATE:
            begun = ~frame.empty(changes["after"][rows])
            rows, codes, quiet = rows[begun], codes[begun], quiet[begun]
        if name[1] == _DATA:
            after = changes["after"][rows]
            vectors = frame.bits(after, IS_TENSOR) & np.isin(frame.values["shape"][after], flat)
            rows, codes, quiet = rows[~vectors], codes[~vectors], quiet[~vectors]
        if len(rows):
            yield name, Records(rows, codes, features, of_calls=False), quiet


def _is_vector(value: Value) -> bool:
    """Whether a value is a tensor with less than two dimensions of several elements."""
    return value.tensor is not None and sum(size > 1 for size in value.tensor.shape) < 2


def _flat_shapes(frame: Frame) -> list[int]:
    """The rows of `Table.texts` that, as shapes, are those of such tensors."""
    sizes = enumerate(text.split("x") for text in frame.table.texts)
    return [at for at, each in sizes if sum(size not in ("", "1") for size in each) < 2]


def _quiet(objects: Ints, changed: Bools) -> Ints:
    """For each record, the number of steps since its object changed.

    `objects` identifies the object of each record, and `changed` says whether it changed in the
    step of the record.  The records of an object follow each other, in the order of steps.
    """
    index = np.arange(len(objects))
    first = np.ones(len(objects), bool)
    first[1:] = objects[1:] != objects[:-1]
    # Before its first record an object counts as changed.
    marks = np.where(changed, index, np.where(first, index - 1, -2))
    found: Ints = index - np.maximum.accumulate(marks)
    return found


def _moment(frame: Frame, rows: Ints) -> Ints:
    """For each of these rows of `Table.changes`, a number that identifies its object and step."""
    steps = len(frame.steps["position"]) + 1
    moments: Ints = frame.changes["object"][rows].astype(np.int64) * steps
    return moments + frame.interval_of_change[rows]


def _graded(frame: Frame) -> Ints:
    """Which objects had a gradient in which steps.

    Each pair of an object and a step is a number, as in `_moment`; the numbers are sorted.
    """
    changes = frame.changes
    grads = [code for code, name in enumerate(frame.variables) if name[1] == "grad"]
    rows = np.flatnonzero(np.isin(frame.variable_of_change, grads))
    full = ~frame.empty(changes["after"][rows])
    before = changes["before"][rows]
    full |= (before != NONE) & ~frame.empty(before)
    return np.unique(_moment(frame, rows[full]))


def _zero_rate(frame: Frame) -> Ints:
    """The indices of the steps in which a learning rate was zero."""
    if _RATE not in frame.variables:
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(frame.variable_of_change == frame.variables.index(_RATE))
    numbers, valid = frame.numbers(frame.changes["after"][rows], "value")
    return np.unique(frame.interval_of_change[rows[valid & (numbers == 0)]])


def _has_gradient(change: Change) -> bool:
    before = change.before
    return not is_empty(change.after) or (before is not None and not is_empty(before))


def _features(features: Features, graded: bool, zero_rate: bool) -> dict[str, Feature]:
    return {**features, "had_gradient": graded, "zero_rate": zero_rate}


def _kept(quiet: Ints, claim: Hypothesis) -> Bools:
    period = claim["period"]
    assert isinstance(period, int)
    return quiet < period if period else quiet > 0


def _claim(name: tuple[str, str], period: int) -> Hypothesis:
    return hypothesis("periodic", variable=name[0], attribute=name[1], period=period)
