"""Argument: how the arguments of an API's calls relate, within one process.

"constant": the argument has this value.  "steady": it is what it was in the last call on the same
object.  "fresh": no earlier call had it, so a batch is not fed twice and a seed not used twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from pytest_trainsafe.judge.learn.columns.frame import Bools, CallGroup, Frame, Ints, Keys
from pytest_trainsafe.judge.learn.evidence import Examples
from pytest_trainsafe.judge.learn.features import Key, is_feature, property_of
from pytest_trainsafe.judge.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judge.learn.relation import OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judge.learn.relations.checker import Checker, by_param, name_of
from pytest_trainsafe.judge.learn.watch import Contexts, Watch
from pytest_trainsafe.trace.observed.events import Call, Plain
from pytest_trainsafe.trace.observed.table import value_at

#: APIs that data and seeds come from.  Elsewhere the same value twice is no fault.
_SOURCE = re.compile(r"^torch\.utils\.data\.|seed")

#: Arguments that say whether a call is one of training.
_MODES = ("arg.training", "arg.dropout_p")

#: The properties that each form compares.
STEADY = ("value", "dtype", "shape")
FRESH = ("digest", "value")
#: More different values than this are no constants.
_MAX_CONSTANTS = 4
_LEAST = 0.2


class Argument(RelationBase):
    """The argument `place` of `api` is constant, steady or fresh."""

    name = "argument"
    forms = (
        *(
            {"form": ("constant",), "api": str, "place": str, "property": ("value",), "value": kind}
            for kind in (str, bool, float, type(None))
        ),
        {"form": ("steady",), "api": str, "place": str, "property": STEADY},
        {"form": ("fresh",), "api": str, "place": str, "property": FRESH},
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Every argument that some calls keep constant, steady or fresh."""
        for frame in frames:
            for api, group in frame.groups.items():
                for place, slot in _arguments(group).items():
                    for value in _constants(frame, slot):
                        yield _claim("constant", api, place, "value", value)
                    fresh = FRESH if _SOURCE.search(api) else ()
                    for form, names in (("steady", STEADY), ("fresh", fresh)):
                        for name in names:
                            passed, where = _passed(frame, group, slot, form, name)
                            # One value would be the rule of a single call.
                            if where.sum() > 1 and passed[where].mean() >= _LEAST:
                                yield _claim(form, api, place, name)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """One example for each call, but the first ones where earlier calls are compared."""
        wanted: dict[str, list[Hypothesis]] = defaultdict(list)
        for claim in claims:
            wanted[claim.text("api")].append(claim)
        for frame in frames:
            for api in sorted(wanted.keys() & frame.groups.keys()):
                group = frame.groups[api]
                for claim in wanted[api]:
                    slot = group.slots.get(claim.text("place"))
                    if slot is None:
                        continue
                    if claim["form"] == "constant":
                        passed, where = _equal(frame, slot, claim["value"])
                    else:
                        form, name = claim.text("form"), claim.text("property")
                        passed, where = _passed(frame, group, slot, form, name)
                    found.add(claim, group, passed, where)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """The features of the same argument."""
        return field == claim["place"] or field.startswith(f"{claim.text('place')}.")

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """An argument cannot have two values, nor be steady and fresh."""
        same = all(claim[name] == other[name] for name in ("api", "place", "property"))
        if not same:
            return False
        if claim["form"] == other["form"] == "constant":
            return claim["value"] != other["value"]
        return {claim["form"], other["form"]} == {"steady", "fresh"}

    def prior(self, claim: Hypothesis) -> int:
        """Options are the author's choice, and the sizes of batches even more."""
        if claim["form"] == "fresh":
            # Small batches of labels repeat by chance.
            return 1 if claim["place"] in ("result", "result.0", "arg.seed") else OWN
        if claim["form"] == "steady" or claim["value"] is None:
            return OWN
        # A layer that is switched off in one phase is so in every program.
        return 2 if claim["place"] in _MODES else -4

    def needs(self, claim: Hypothesis) -> Needs:
        """The API."""
        return Needs(frozenset({claim.text("api")}))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """Keeps what earlier calls had."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        place, api = claim.text("place"), claim.text("api")
        what = place if claim["property"] == "value" else f"the {claim['property']} of {place}"
        if claim["form"] == "constant":
            return Explanation(
                f"{place} of {api} is {claim['value']!r}",
                "an option was changed, or the wrong mode is passed on",
            )
        if claim["form"] == "steady":
            return Explanation(
                f"{what} of {api} is the same in successive calls on one object",
                "the program changed what it passes on",
            )
        return Explanation(
            f"{what} of {api} differs from that of every earlier call",
            "the same data or the same seed is used again",
        )


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._watches = by_param(watches, "api")
        self._last: dict[tuple[int, int], Key] = {}
        self._earlier: dict[int, set[Key]] = defaultdict(set)

    def left(self, call: Call) -> None:
        if call.exception:
            return
        for watch in self._watches.get(name_of(call), ()):
            value = call.values.get(watch.claim.text("place"))
            key = None if value is None else property_of(value, watch.claim.text("property"))
            if value is None or key is None:
                continue
            form = watch.claim["form"]
            if form == "constant":
                found, wanted = value.plain, watch.claim["value"]
                passed = type(found) is type(wanted) and found == wanted
            elif form == "steady":
                owner = call.values.get("self")
                last = id(watch), 0 if owner is None else owner.identity
                before = self._last.get(last)
                self._last[last] = key
                if before is None:
                    continue
                passed = before == key
            else:
                earlier = self._earlier[id(watch)]
                passed = key not in earlier
                if not earlier:
                    earlier.add(key)
                    continue
                earlier.add(key)
            watch.example(lambda: self.of_call(call), passed, call)


def _arguments(group: CallGroup) -> Mapping[str, Ints]:
    given = "" if _SOURCE.search(group.api) else "arg."
    return {place: slot for place, slot in group.slots.items() if place.startswith(given)}


def _constants(frame: Frame, slot: Ints) -> list[Plain]:
    """The values that an argument has, if they are few and not numbers.

    Numbers are the choice of a program: its rates, sizes and counts.  Zero switches off.
    """
    keys, valid = frame.keys(slot, "value")
    rows = slot[valid]
    values, first = np.unique(keys[valid], return_index=True)
    if not 0 < len(values) <= _MAX_CONSTANTS:
        return []
    plain = [value_at(frame.table, int(rows[at])).plain for at in first]
    return sorted((each for each in plain if is_feature(each) or _is(each, 0.0)), key=repr)


def _equal(frame: Frame, slot: Ints, wanted: Plain) -> tuple[Bools, Bools]:
    keys, valid = frame.keys(slot, "value")
    values, first = np.unique(keys, return_index=True)
    same = [
        bool(valid[at]) and _is(value_at(frame.table, int(slot[at])).plain, wanted) for at in first
    ]
    return np.array(same, bool)[np.searchsorted(values, keys)] & valid, valid


def _is(found: Plain, wanted: Plain) -> bool:
    return type(found) is type(wanted) and found == wanted


def _passed(
    frame: Frame, group: CallGroup, slot: Ints, form: str, name: str
) -> tuple[Bools, Bools]:
    """Which calls keep an argument steady or fresh, and which calls are examples of it."""
    keys, valid = frame.keys(slot, name)
    # Values are compared in the order in which calls return, as a checker sees them.
    order = np.argsort(frame.calls["exit"][group.rows], kind="stable")
    order = order[valid[order]]
    passed, where = np.zeros(len(slot), bool), np.zeros(len(slot), bool)
    if form == "fresh":
        first = np.unique(keys[order], return_index=True)[1]
        passed[order[first]] = True
        where[order[1:]] = True
        return passed, where
    owners = group.slots.get("self")
    who = np.zeros(len(slot), np.uint64) if owners is None else frame.keys(owners, "identity")[0]
    _steady(order, who, keys, passed, where)
    return passed, where


def _steady(order: Ints, who: Keys, keys: Keys, passed: Bools, where: Bools) -> None:
    """Compare each key with the last one of the same owner."""
    order = order[np.argsort(who[order], kind="stable")]
    same = who[order[1:]] == who[order[:-1]]
    where[order[1:]] = same
    passed[order[1:]] = same & (keys[order[1:]] == keys[order[:-1]])


def _claim(form: str, api: str, place: str, name: str, value: Plain = None) -> Hypothesis:
    params: dict[str, Plain] = {"form": form, "api": api, "place": place, "property": name}
    if form == "constant":
        params["value"] = value
    return hypothesis("argument", **params)
