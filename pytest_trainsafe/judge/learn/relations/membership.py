"""Membership: what is trained is what the optimizer holds.

"held": a parameter of the model is in a group of the optimizer.  "known": what the optimizer
holds is a parameter of the model; a model that was wrapped, flattened or copied after the
optimizer was made leaves it with parameters that nobody trains.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judge.learn.columns.frame import Bools, Frame, Ints, Records
from pytest_trainsafe.judge.learn.conditions import Features
from pytest_trainsafe.judge.learn.evidence import Examples
from pytest_trainsafe.judge.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judge.learn.relation import OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judge.learn.relations.checker import Checker, variable_of
from pytest_trainsafe.judge.learn.watch import Contexts, Watch
from pytest_trainsafe.trace.observed.events import MAX_TEXT, Change
from pytest_trainsafe.trace.observed.table import NONE

_GROUPS = "optimizer.param_groups", "params"
_PARAMETERS = "torch.nn.Parameter", "data"


class Membership(RelationBase):
    """The optimizer holds the model's parameters, and no others."""

    name = "membership"
    forms = ({"form": ("held", "known")},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Both forms, where the optimizer's parameters and the model's were observed."""
        if any(_GROUPS in frame.variables and _PARAMETERS in frame.variables for frame in frames):
            yield hypothesis("membership", form="held")
            yield hypothesis("membership", form="known")

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """One example for each parameter, or group of parameters, at the end of each step."""
        for frame in frames:
            for claim in claims:
                records, passed = _examples(frame, claim.text("form"))
                if len(passed):
                    found.add(claim, records, passed)

    def prior(self, claim: Hypothesis) -> int:
        """Fine-tuning trains a part of a model; what is trained is a part of it in any case."""
        return OWN if claim["form"] == "held" else 2

    def needs(self, claim: Hypothesis) -> Needs:
        """The parameters and the optimizer's groups."""
        return Needs(frozenset(), frozenset({_GROUPS, _PARAMETERS}))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """Keeps the last record of each object, and judges at the end of a step."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        causes = "the optimizer was made before the model was wrapped, moved or changed"
        if claim["form"] == "held":
            return Explanation("every parameter of the model is in the optimizer", causes)
        return Explanation("the optimizer holds parameters of the model only", causes)


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._forms: dict[str, list[Watch]] = defaultdict(list)
        for watch in watches:
            self._forms[watch.claim.text("form")].append(watch)
        self._parameters: dict[str, Change] = {}
        self._groups: dict[str, Change] = {}

    def changed(self, change: Change) -> None:
        name = variable_of(change)
        if name == _PARAMETERS:
            self._parameters[change.object] = change
        elif name == _GROUPS:
            self._groups[change.object] = change

    def step_ended(self, step: int) -> None:
        known = {change.after.identity for change in self._parameters.values()} - {0}
        texts = {name: change.after.plain for name, change in self._groups.items()}
        parsed = {name: _identities(text) for name, text in texts.items()}
        groups = {name: held for name, held in parsed.items() if held is not None}
        if known and len(groups) == len(parsed) and groups:
            held = set().union(*groups.values())
            for watch in self._forms["held"]:
                for change in self._parameters.values():
                    if change.after.identity:
                        passed = change.after.identity in held
                        self._judge(watch, passed, change)
            for watch in self._forms["known"]:
                for name in groups:
                    change = self._groups[name]
                    passed = groups[name] <= known
                    self._judge(watch, passed, change)
        self._parameters, self._groups = {}, {}

    def _judge(self, watch: Watch, passed: bool, change: Change) -> None:
        watch.example(lambda: _without_value(self.of_change(change)), passed, change)


def _examples(frame: Frame, form: str) -> tuple[Records, Bools]:
    """The records of one form, and whether each passes."""
    nothing = Records(np.zeros(0, np.int64), np.zeros(0, np.int64), [], of_calls=False)
    names = frame.variables
    if _GROUPS not in names or _PARAMETERS not in names:
        return nothing, np.zeros(0, bool)
    parameters = frame.at_step_ends(names.index(_PARAMETERS))
    groups = frame.at_step_ends(names.index(_GROUPS))
    held = _held(frame, groups)
    after = frame.changes["after"]
    identities = frame.values["identity"][after[parameters]]
    parameters, identities = parameters[identities != 0], identities[identities != 0]
    steps = frame.interval_of_change[parameters]
    if form == "held":
        inside = np.array([step in held for step in steps.tolist()], bool)
        unions = {step: set().union(*of_step.values()) for step, of_step in held.items()}
        pairs = zip(identities[inside].tolist(), steps[inside].tolist(), strict=True)
        passed = [identity in unions[step] for identity, step in pairs]
        return frame.change_records(parameters[inside]), np.array(passed, bool)
    known: dict[int, set[int]] = defaultdict(set)
    for identity, step in zip(identities.tolist(), steps.tolist(), strict=True):
        known[step].add(identity)
    rows = [row for step, of_step in held.items() if step in known for row in of_step]
    passed = [
        of_step[row] <= known[step]
        for step, of_step in held.items()
        if step in known
        for row in of_step
    ]
    records = frame.change_records(np.array(rows, np.int64))
    plain = [_without_value(features) for features in records.features]
    return Records(records.rows, records.codes, plain, of_calls=False), np.array(passed, bool)


def _held(frame: Frame, rows: Ints) -> dict[int, dict[int, set[int]]]:
    """For each step, the groups' rows with the identities that each holds.

    A step in which the text of some group was cut is left out.
    """
    found: dict[int, dict[int, set[int]]] = defaultdict(dict)
    cut: set[int] = set()
    texts = frame.values["text"][frame.changes["after"][rows]]
    parsed: dict[int, set[int] | None] = {
        text: None if text == NONE else _identities(frame.table.texts[text])
        for text in np.unique(texts).tolist()
    }
    steps = frame.interval_of_change[rows].tolist()
    for row, text, step in zip(rows.tolist(), texts.tolist(), steps, strict=True):
        held = parsed[text]
        if held is None:
            cut.add(step)
        else:
            found[step][row] = held
    return {step: found[step] for step in sorted(found) if step not in cut}


def _identities(text: object) -> set[int] | None:
    """The identities in a group's text; None if it was cut or is no text."""
    if not isinstance(text, str) or len(text) >= MAX_TEXT:
        return None
    return set(map(int, re.findall(r"\d+", text)))


def _without_value(features: Features) -> Features:
    return {name: each for name, each in features.items() if name != "value"}
