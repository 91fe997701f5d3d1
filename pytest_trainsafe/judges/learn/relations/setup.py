"""Setup: who trains what in one program, by name.

The claims of a program are a snapshot of its training, which is reviewed as one block of a pack: of
each parameter, whether it requires gradients, the optimizer and the group that hold it, and its
other names, which tied layers have; the settings of each group; and the mode in which each model
runs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, name_of, variable_of
from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints, Records
from pytest_trainsafe.judges.learn.columns.light import light_change
from pytest_trainsafe.judges.learn.columns.setups import setups
from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain
from pytest_trainsafe.judges.learn.events.mode_text import modes_in
from pytest_trainsafe.judges.learn.events.setup_text import SETUP, optimizers_in
from pytest_trainsafe.judges.learn.events.table import NONE, value_at
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_STEP = "torch.optim.*.step"
_GROUPS = "optimizer.param_groups"
_TYPES = ("torch.nn.Parameter", "torch.distributed.tensor.DTensor")
#: The index of a layer in a name: layers that are trained alike share a claim.
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")
#: Attributes of a group that are no settings.
_NO_SETTINGS = ("params", "initial_lr")


class Setup(RelationBase):
    """What a snapshot of the training set-up says of an object.

    "parameter": each parameter called `object`, in which `*` stands for any index, has the set-up
    `value`.  "setting": `attribute` of the optimizer's group `object` has the value `value`.
    "mode": when the model `object` runs, it is in the mode `value`.
    """

    name = "setup"
    named = True
    forms = (
        {"form": ("parameter", "mode"), "object": str, "value": str},
        *(
            {"form": ("setting",), "object": str, "attribute": str, "value": kind}
            for kind in (str, float)
        ),
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes what each parameter has after the last step, and all settings and modes."""
        for frame in frames:
            every = [change for change in setups(frame)[1] if _in_model(change)]
            began: dict[object, object] = {}
            for change in every:
                for part in (change.object, *_parts_of(change)):
                    began.setdefault(part, change.meta.get("step"))
            # A parameter that is made later, as an adapter, is not missing before.
            last = {
                change.object: change
                for change in every
                if began[change.object] == began[_parts_of(change)[-1]]
            }
            alike: dict[str, list[Change]] = defaultdict(list)
            for change in last.values():
                alike[_pattern(change.object)].append(change)
            for pattern, changes in alike.items():
                if len({each.after.plain for each in changes}) == 1:
                    yield _claim("parameter", pattern, changes[0].after.plain)
                else:
                    for each in changes:
                        yield _claim("parameter", each.object, each.after.plain)
            for _, change in _settings(frame):
                claim = _setting(change)
                if claim is not None:
                    yield claim
            for modes in _modes(frame).values():
                for name, mode in modes.items():
                    yield _claim("mode", name, mode)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each parameter and group, or for each model that ran, in each step.

        If the model has no parameter of the name of a claim, the claim fails in each step from that
        on in which the optimizer of the claim holds others of its parameters: one that is made
        later, as an adapter, is not missing before.
        """
        for frame in frames:
            states = _States(frame)
            settings = _by_object(_settings(frame))
            modes = _modes(frame)
            for claim in claims:
                form, name, value = claim.text("form"), claim.text("object"), claim["value"]
                if form == "parameter":
                    states.add(claim, found)
                elif form == "setting":
                    rows = settings.get((name, claim.text("attribute")), [])
                    if rows:
                        records = frame.change_records(np.array([row for row, _ in rows]))
                        passed = [_number(each.after.plain) == value for _, each in rows]
                        found.add(claim, records, np.array(passed, bool))
                elif modes:
                    group = frame.groups[_STEP]
                    ran = [modes.get(int(row), {}).get(name) for row in group.rows]
                    where = np.array([mode is not None for mode in ran], bool)
                    found.add(claim, group, np.array([mode == value for mode in ran], bool), where)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids all preconditions: a set-up that changes while training is no rule."""
        return True

    def anywhere(self, claim: Hypothesis) -> bool:
        """True: a set-up holds in every context."""
        return True

    def prior(self, claim: Hypothesis) -> int:
        """`OWN`: names belong to one program."""
        return OWN

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the set-up of parameters, the settings, or the steps."""
        form = claim["form"]
        if form == "setting":
            return Needs(variables=frozenset({(_GROUPS, claim.text("attribute"))}))
        apis = frozenset({_STEP}) if form == "mode" else frozenset()
        variables = frozenset((each, SETUP) for each in _TYPES)
        return Needs(apis, variables, contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that keeps the set-up of each object, and judges it at the end of a step."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        form, name, value = claim["form"], claim["object"], claim["value"]
        if form == "setting":
            return Explanation(
                f"{claim['attribute']} of {name} is {value}",
                "an option was changed, or parameters are in the wrong group",
            )
        if form == "mode":
            return Explanation(
                f"{name} runs in the mode: {value}",
                "train() or eval() is missing, or is called on the wrong module",
            )
        return Explanation(
            f"{name} is {value}",
            "a parameter is frozen or thawed by mistake, is not given to the optimizer or to its "
            "group, was replaced after the optimizer was made, or is no longer tied",
        )


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._parameters = [each for each in watches if each.claim["form"] == "parameter"]
        self._settings: dict[tuple[str, str], list[Watch]] = defaultdict(list)
        self._modes: dict[str, list[Watch]] = defaultdict(list)
        for watch in watches:
            if watch.claim["form"] == "setting":
                key = watch.claim.text("object"), watch.claim.text("attribute")
                self._settings[key].append(watch)
            elif watch.claim["form"] == "mode":
                self._modes[watch.claim.text("object")].append(watch)
        #: The set-up of each parameter, under its name and its pattern; the first of each model and
        #: each optimizer that holds some of it.
        self._known: dict[str, dict[str, Change]] = defaultdict(dict)
        self._first: dict[tuple[str, str], Change] = {}
        self._now: dict[tuple[str, str], Change] = {}

    def reads_calls(self, api: str) -> bool:
        return api == _STEP and bool(self._modes)

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return variable[1] == SETUP or variable[0] == _GROUPS

    def changed(self, change: Change) -> None:
        if change.attribute == SETUP:
            if _in_model(change):
                for key in _parts_of(change):
                    self._first.setdefault(key, change)
                for name in {change.object, _pattern(change.object)}:
                    self._known[name][change.object] = change
        elif variable_of(change)[0] == _GROUPS:
            key = change.object, change.attribute
            if key in self._settings:
                self._now[key] = change

    def step_ended(self, step: int) -> None:
        for watch in self._parameters:
            name, value = watch.claim.text("object"), watch.claim["value"]
            changes = self._known.get(name)
            first = self._first.get(_owner(name, value))
            if changes:
                for change in changes.values():
                    passed = change.after.plain == value
                    self._judge(watch, passed, change, f"it is {change.after.plain}")
            elif first is not None:
                self._judge(watch, False, first, f"the model has no parameter {name}")
        for key, change in self._now.items():
            for watch in self._settings[key]:
                self._judge(watch, _number(change.after.plain) == watch.claim["value"], change)
        self._now = {}

    def left(self, call: Call) -> None:
        if call.exception or name_of(call) != _STEP:
            return
        modes = call.values.get("self.modes")
        for name, mode in modes_in("" if modes is None else modes.plain).items():
            for watch in self._modes.get(name, ()):
                passed = mode == watch.claim["value"]
                detail = "" if passed else f"the mode is: {mode}"
                watch.example(lambda: self.of_call(call), passed, call, detail)

    def _judge(self, watch: Watch, passed: bool, change: Change, detail: str = "") -> None:
        watch.example(lambda: self.of_change(change), passed, change, "" if passed else detail)


class _States:
    """The set-ups of a table's parameters at the end of each step."""

    def __init__(self, frame: Frame) -> None:
        rows, changes = setups(frame)
        inside = [index for index, change in enumerate(changes) if _in_model(change)]
        self._rows = rows[inside]
        self._changes = [changes[index] for index in inside]
        self._records = frame.change_records(self._rows)
        self._intervals = frame.interval_of_change[self._rows]
        self._steps = len(frame.steps["position"])
        self._first: dict[tuple[str, str], int] = {}
        self._named: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for index, change in enumerate(self._changes):
            for key in _parts_of(change):
                self._first.setdefault(key, index)
            for name in {change.object, _pattern(change.object)}:
                self._named[name][change.object].append(index)

    def add(self, claim: Hypothesis, found: Examples) -> None:
        """Add the examples of a claim on parameters."""
        name, value = claim.text("object"), claim["value"]
        for indexes in self._named[name].values() if name in self._named else ():
            passed = [self._changes[index].after.plain == value for index in indexes]
            self._add(claim, np.array(indexes), np.array(passed, bool), found)
        first = self._first.get(_owner(name, value))
        if name not in self._named and first is not None:
            self._add(claim, np.array([first]), np.zeros(1, bool), found)

    def _add(
        self,
        claim: Hypothesis,
        indexes: Ints,
        passed: Bools,
        found: Examples,
    ) -> None:
        """Add an example for each step from the first of these changes on, of the last change."""
        intervals = self._intervals[indexes]
        steps = np.arange(intervals[0], self._steps)
        last = np.searchsorted(intervals, steps, side="right") - 1
        at = indexes[last]
        codes, features = self._records.codes[at], self._records.features
        records = Records(self._rows[at], codes, features, of_calls=False)
        found.add(claim, records, passed[last])


def _settings(frame: Frame) -> Iterator[tuple[int, Change]]:
    """Yields the last value in each step of each number and text of an optimizer's groups."""
    for code, (kind, attribute) in enumerate(frame.variables):
        if kind == _GROUPS and attribute not in _NO_SETTINGS:
            for row in frame.at_step_ends(code):
                yield int(row), light_change(frame.table, int(row))


def _by_object(
    settings: Iterable[tuple[int, Change]],
) -> Mapping[tuple[str, str], list[tuple[int, Change]]]:
    found: dict[tuple[str, str], list[tuple[int, Change]]] = defaultdict(list)
    for row, change in settings:
        found[change.object, change.attribute].append((row, change))
    return found


def _setting(change: Change) -> Hypothesis | None:
    value = _number(change.after.plain)
    if not isinstance(value, float | str):
        return None
    return hypothesis(
        "setup", form="setting", object=change.object, attribute=change.attribute, value=value
    )


def _number(plain: Plain) -> Plain:
    """A number as a float; truth values and others as they are."""
    return float(plain) if isinstance(plain, int) and not isinstance(plain, bool) else plain


def _modes(frame: Frame) -> Mapping[int, Mapping[str, str]]:
    """The mode of each model that ran before a step of an optimizer, by the row of the step."""
    group = frame.groups.get(_STEP)
    if group is None or "self.modes" not in group.slots:
        return {}
    return {
        int(row): modes_in(value_at(frame.table, int(at)).plain)
        for row, at in zip(group.rows, group.slots["self.modes"], strict=True)
        if at != NONE
    }


def _claim(form: str, name: str, value: Plain) -> Hypothesis:
    return hypothesis("setup", form=form, object=name, value=str(value))


def _in_model(change: Change) -> bool:
    """Whether a parameter belongs to a model: others are renamed when their model is found."""
    return _root(change.object).rstrip("0123456789") == "model"


def _parts_of(change: Change) -> list[tuple[str, str]]:
    """The model of a parameter, alone and with each optimizer that holds the parameter."""
    optimizers = optimizers_in(str(change.after.plain))
    return [(_root(change.object), each) for each in ("", *optimizers)]


def _owner(name: str, value: object) -> tuple[str, str]:
    """The model of a parameter with the last optimizer that its set-up names, "" for none."""
    return _root(name), ["", *optimizers_in(str(value))][-1]


def _root(name: str) -> str:
    return name.partition(".")[0]


def _pattern(name: str) -> str:
    return _INDEX.sub("*", name)
