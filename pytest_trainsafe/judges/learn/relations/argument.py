"""Argument: how the arguments of an API's calls relate, within one process.

A claim has one of five forms.  "constant": the argument has a certain value.  "steady": it has the
same value as in the last call on the same object.  "fresh": no earlier call had the same value, so
that no batch is fed twice, no seed used twice and no parameter initialised twice.  "same": two
numbers of a call, such as a count and the length of a list, are equal.  "off": dropout is off in
modules that are in evaluation mode.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import CallChecker, Checker, name_of
from pytest_trainsafe.judges.learn.columns.frame import Bools, CallGroup, Frame, Ints, Keys
from pytest_trainsafe.judges.learn.columns.ranks import mixed
from pytest_trainsafe.judges.learn.events.events import Call, Plain
from pytest_trainsafe.judges.learn.events.table import NONE, value_at
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.features import Key, is_feature, number_of, property_of
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.names import is_architecture, is_own_module
from pytest_trainsafe.judges.learn.relation import (
    OWN,
    Explanation,
    Needs,
    RelationBase,
    contents_of,
)
from pytest_trainsafe.judges.learn.relations.by_api import by_api
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

#: APIs from which data and seeds come.  Elsewhere a repeated value is no fault.
_SOURCE = re.compile(r"^torch\.utils\.data\.|seed")

#: The API that returns batches.  An epoch may repeat the batches of the previous one.
_LOADED = "torch.utils.data.DataLoader.__next__"

#: APIs that give an object its first values.
_INITIAL = re.compile(r"(^|[._])init(ialize)?[._]")

#: APIs that drop values at random while training.
_DROPS = re.compile(r"dropout|scaled_dot_product_attention")
#: Arguments that switch between training and evaluation.
_MODES = ("arg.training", "arg.dropout_p")

#: The suffix of a place that says whether a model has all parameters of an optimizer.
_IN_MODEL = ".in_model"

#: The properties that each form compares.
STEADY = ("value", "dtype", "shape")
FRESH = ("digest", "value", "identity")
#: A string that may be the name of a mode: one word.  Other strings are sizes or data.
_WORD = re.compile(r"[A-Za-z][\w.:-]*")
#: Two numbers that are both smaller than this are not compared, as they are equal by chance.
SMALL = 3
#: An argument with more distinct values than this is no constant.
_MAX_CONSTANTS = 4
_LEAST = 0.2


class Argument(RelationBase):
    """The argument `place` of `api` has a value as `form` says.

    "constant": a certain value.  "steady": the value of the last call on the same object.  "fresh":
    a value that no earlier call had.  "same": the value of the argument `of` in the same call.
    "off": False or 0 if the call is in a module that is in evaluation mode.
    """

    name = "argument"
    forms = (
        *(
            {"form": ("constant",), "api": str, "place": str, "property": ("value",), "value": kind}
            for kind in (str, bool, float, type(None))
        ),
        {"form": ("steady",), "api": str, "place": str, "property": STEADY},
        {"form": ("fresh",), "api": str, "place": str, "property": FRESH},
        {"form": ("same",), "api": str, "place": str, "property": ("value",), "of": str},
        {"form": ("off",), "api": str, "place": _MODES, "property": ("value",)},
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes each form of claim that enough calls satisfy, for each argument of each API.

        The docstring of `Argument` describes the forms.
        """
        for frame in frames:
            for api, group in frame.attempts.items():
                for place, slot in _arguments(group).items():
                    if place in _MODES and _DROPS.search(api):
                        yield _claim("off", api, place, "value")
                    for value in _constants(frame, slot):
                        yield _claim("constant", api, place, "value", value)
                    for form, names in (("steady", STEADY), ("fresh", _fresh(frame, api, slot))):
                        for name in names:
                            passed, where = _passed(frame, group, slot, form, name)
                            # A single example would be a rule on one call.
                            if where.sum() > 1 and passed[where].mean() >= _LEAST:
                                yield _claim(form, api, place, name)
                yield from _equal_pairs(frame, group)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each call that has the argument of the claim.

        The forms "steady" (equal to the last value) and "fresh" (not used before) need an earlier
        call for the comparison.
        """
        for frame in frames:
            for group, claim in by_api(claims, frame.attempts):
                slot = group.slots.get(claim.text("place"))
                if slot is None:
                    continue
                form, name = claim.text("form"), claim.text("property")
                if form == "constant":
                    passed, where = _equal(frame, slot, claim["value"])
                elif form == "same":
                    passed, where = _same(frame, slot, group.slots.get(claim.text("of")))
                elif form == "off":
                    passed, where = _off(frame, group, slot)
                else:
                    passed, where = _passed(frame, group, slot, form, name)
                found.add(claim, group, passed, where)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the argument of the claim."""
        return field == claim["place"] or field.startswith(f"{claim.text('place')}.")

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Whether two claims give an argument two values.

        Also True if one says that the value stays the same ("steady"), and the other that it is
        never used twice ("fresh").
        """
        same = all(claim[name] == other[name] for name in ("api", "place", "property"))
        if not same or {claim["form"], other["form"]} & {"same", "off"}:
            return False
        if claim["form"] == other["form"] == "constant":
            return claim["value"] != other["value"]
        return {claim["form"], other["form"]} == {"steady", "fresh"}

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        2 for a constant mode, such as `arg.training`.  1 for the forms "same" and "off", and for
        most claims of the form "fresh".  `OWN` for all other claims, because authors choose options
        freely, and for modules that programs define: such a claim is checked only on the programs
        from which it was learned.
        """
        if claim["form"] == "fresh":
            # Small batches of labels repeat by chance.
            if claim["place"] in ("result", "result.0", "arg.seed"):
                return 1
            return OWN if _SOURCE.search(claim.text("api")) else 1
        if is_own_module(claim.text("api")):
            return OWN
        if claim["form"] in ("same", "off"):
            return 1
        if claim["form"] == "steady" or claim["value"] is None:
            return OWN
        # All programs switch such layers on or off in the same phases.
        return 2 if claim["place"] in _MODES or claim.text("place").endswith(_IN_MODEL) else OWN

    def anywhere(self, claim: Hypothesis) -> bool:
        """Whether a claim may be judged in phases, modes and dtypes in which it was not seen.

        True for the form "same": if two counts must agree, they do so in every context.  True for
        "off", which says itself where it is judged.
        """
        return claim["form"] in ("same", "off")

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the API of the claim."""
        return Needs(frozenset({claim.text("api")}), contents=contents_of(claim))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each call, with the arguments of earlier calls."""
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
        if claim["form"] == "off":
            return Explanation(
                f"{place} of {api} is off in modules that are in evaluation mode",
                "the function is called without training=self.training",
            )
        if claim["form"] == "same":
            return Explanation(
                f"{place} of {api} equals {claim['of']}",
                "something is left out, cut off or counted in another way",
            )
        if claim["form"] == "steady":
            return Explanation(
                f"{what} of {api} is the same in successive calls on one object",
                "the program changed what it passes on",
            )
        epoch = " of its epoch" if api == _LOADED else ""
        return Explanation(
            f"{what} of {api} differs from that of every earlier call{epoch}",
            "the same data or the same seed is used again",
        )


class _Checker(CallChecker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(watches, contexts)
        self._last: dict[tuple[int, int], Key] = {}
        self._earlier: dict[int, set[Key]] = defaultdict(set)

    def left(self, call: Call) -> None:
        for watch in self.watches.get(name_of(call), ()):
            value = call.values.get(watch.claim.text("place"))
            key = None if value is None else property_of(value, watch.claim.text("property"))
            if value is None or key is None:
                continue
            form = watch.claim["form"]
            if form == "constant":
                found, wanted = value.plain, watch.claim["value"]
                passed = type(found) is type(wanted) and found == wanted
            elif form == "same":
                other = call.values.get(watch.claim.text("of"))
                mine, its = number_of(value), None if other is None else number_of(other)
                if mine is None or its is None or max(mine, its) < SMALL:
                    continue
                passed = mine == its
            elif form == "off":
                if call.meta.get("training") is not False:
                    continue
                passed = not value.plain
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
                if name_of(call) == _LOADED:
                    key = f"epoch {call.meta.get('epoch')}", repr(key)
                passed = key not in earlier
                if not earlier:
                    earlier.add(key)
                    continue
                earlier.add(key)
            watch.example(lambda: self.of_call(call), passed, call)


def _fresh(frame: Frame, api: str, slot: Ints) -> Sequence[str]:
    """The properties of an argument that no two calls of the API should have in common.

    `slot` has the row of the argument's value in `Table.values` for each call.  A property is a
    name such as "digest", the hash of a tensor's content.
    """
    if _SOURCE.search(api):
        return "digest", "value"
    if _INITIAL.search(api):
        return ("identity",)
    # Whole numbers may identify things, such as devices or ranks.  In torch they are mostly sizes.
    return () if api.startswith("torch.") or not _is_integer(frame, slot).all() else ("value",)


def _is_integer(frame: Frame, slot: Ints) -> Bools:
    """Which of the values, given by rows of `Table.values`, are whole numbers."""
    numbers, valid = frame.numbers(slot, "value")
    with np.errstate(invalid="ignore"):
        found: Bools = valid & (numbers == np.floor(numbers))
    return found


def _equal_pairs(frame: Frame, group: CallGroup) -> Iterable[Hypothesis]:
    """Yields a claim for each two arguments that are equal whole numbers in enough calls."""
    if is_architecture(group.api):
        return
    numbers = {
        place: slot
        for place, slot in group.slots.items()
        if place.startswith(("arg.", "self.")) and _is_integer(frame, slot).any()
    }
    for place, of in itertools.combinations(sorted(numbers), 2):
        if not of.startswith("self.") or not place.startswith("self."):
            passed, where = _same(frame, numbers[place], numbers[of])
            if where.any() and passed[where].mean() >= _LEAST:
                yield hypothesis(
                    "argument", form="same", api=group.api, place=place, property="value", of=of
                )


def _same(frame: Frame, slot: Ints, other: Ints | None) -> tuple[Bools, Bools]:
    """Which calls have equal numbers as two arguments, and which calls have numbers to compare.

    `slot` and `other` have the rows of the two arguments' values in `Table.values`, one for each
    call; `other` is None if no call has the second argument.
    """
    if other is None:
        nowhere = np.zeros(len(slot), bool)
        return nowhere, nowhere
    numbers, valid = frame.numbers(slot, "value")
    others, has = frame.numbers(other, "value")
    with np.errstate(invalid="ignore"):
        return numbers == others, valid & has & (np.maximum(numbers, others) >= SMALL)


def _off(frame: Frame, group: CallGroup, slot: Ints) -> tuple[Bools, Bools]:
    """Which calls drop nothing, and which are in a module in evaluation mode."""
    metas = frame.calls["meta"][group.rows]
    quiet = np.array([meta.get("training") is False for meta in frame.table.metas], bool)[metas]
    numbers = frame.values["number"][np.maximum(slot, 0)]
    valid = (slot != NONE) & ~np.isnan(numbers)
    return (numbers == 0) & valid, quiet & valid


def _arguments(group: CallGroup) -> Mapping[str, Ints]:
    given = "" if _SOURCE.search(group.api) else "arg."
    return {place: slot for place, slot in group.slots.items() if place.startswith(given)}


def _constants(frame: Frame, slot: Ints) -> list[Plain]:
    """The values that may be claimed as constants of an argument; [] if it has too many values.

    `slot` has the row of the argument's value in `Table.values` for each call.  Numbers are left
    out, as they are a program's own rates, sizes and counts.  0.0 is kept, as it switches something
    off.
    """
    keys, valid = frame.keys(slot, "value")
    rows = slot[valid]
    values, first = np.unique(keys[valid], return_index=True)
    if not 0 < len(values) <= _MAX_CONSTANTS:
        return []
    plain = [value_at(frame.table, int(rows[at])).plain for at in first]
    return sorted((each for each in plain if _is_mode(each) or _is(each, 0.0)), key=repr)


def _is_mode(value: Plain) -> bool:
    """Whether a value is a truth value, None or one word."""
    return is_feature(value) and not (isinstance(value, str) and not _WORD.fullmatch(value))


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
    """In which calls an argument satisfies a claim, and which calls can be judged.

    The claim has the form "steady" (the property `name` is that of the last call on the same
    object) or "fresh" (no earlier call had it).  `slot` has the row of the argument's value in
    `Table.values` for each call of `group`.
    """
    keys, valid = frame.keys(slot, name)
    # Values are compared in the order in which calls return, as a checker sees them.
    order = np.argsort(frame.calls["exit"][group.rows], kind="stable")
    order = order[valid[order]]
    passed, where = np.zeros(len(slot), bool), np.zeros(len(slot), bool)
    if form == "fresh":
        if group.api == _LOADED:
            epochs = frame.epochs_of(frame.calls["meta"][group.rows])
            keys = mixed(keys, epochs.astype(np.uint64))
        first = np.unique(keys[order], return_index=True)[1]
        passed[order[first]] = True
        where[order[1:]] = True
        return passed, where
    owners = group.slots.get("self")
    who = np.zeros(len(slot), np.uint64) if owners is None else frame.keys(owners, "identity")[0]
    _steady(order, who, keys, passed, where)
    return passed, where


def _steady(order: Ints, who: Keys, keys: Keys, passed: Bools, where: Bools) -> None:
    """Marks the calls whose argument equals that of the previous call on the same object.

    `order` has the calls in time order, `who` the object of each call, and `keys` the key of its
    argument.  `where` is set to True for each call that has a previous call on its object, and
    `passed` for each of these calls whose key equals that of the previous call.
    """
    order = order[np.argsort(who[order], kind="stable")]
    same = who[order[1:]] == who[order[:-1]]
    where[order[1:]] = same
    passed[order[1:]] = same & (keys[order[1:]] == keys[order[:-1]])


def _claim(form: str, api: str, place: str, name: str, value: Plain = None) -> Hypothesis:
    params: dict[str, Plain] = {"form": form, "api": api, "place": place, "property": name}
    if form == "constant":
        params["value"] = value
    return hypothesis("argument", **params)
