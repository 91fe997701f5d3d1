"""Output: what the result of an API's call is, by itself or compared with its arguments.

A claim has one of these forms.  "equal": a property of the result equals that of an argument; it
is a size, a dtype, the content of a tensor that is only moved, or a number.  "autocast": the result
has the dtype of the autocast context.  "at_most": a size or a number of the result does not exceed
an argument.  "not_negative": a number is 0 or more.  "finite" and "nonzero": all elements of a
tensor are finite, or some are not zero.  "requires_grad": the result requires gradients if an
argument does.  "no_grad": it does not require them.  "empty": a list has no items, such as the keys
that a loaded state lacks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import CallChecker, Checker, name_of
from pytest_trainsafe.judges.learn.columns.frame import Bools, CallGroup, Floats, Frame
from pytest_trainsafe.judges.learn.events.events import Call, Value
from pytest_trainsafe.judges.learn.events.table import FINITE, IS_TENSOR, REQUIRES_GRAD, ZERO
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.features import number_of, property_of
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant, hypothesis
from pytest_trainsafe.judges.learn.names import is_architecture, is_own_module
from pytest_trainsafe.judges.learn.relation import (
    CHOICE,
    HABIT,
    OWN,
    Explanation,
    Needs,
    RelationBase,
    contents_of,
)
from pytest_trainsafe.judges.learn.relations.argument import SMALL
from pytest_trainsafe.judges.learn.relations.by_api import by_api
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_EQUAL = ("dtype", "device", "shape", "shape[0]", "shape[-1]", "digest")
_AT_MOST = ("shape[0]", "shape[-1]", "value", "norm")
_FLAGS = ("finite", "nonzero", "requires_grad", "no_grad")
#: The lists of keys that a model lacks, or that it does not expect.
_LOADS, _LENGTH = ".load_state_dict", ".length"
_LEAST = 0.2
#: Names of arguments that are limits.  Other arguments exceed a result only by coincidence.
_LIMIT = re.compile(r"max|limit|bound|size")
_CLIPS = re.compile(r"\.clip_grads?_")
#: Names of limits on a number of things.  They do not limit a norm.
_COUNT = re.compile(r"length|size|steps|tokens|epochs")
#: The relative amount by which rounding may let a number exceed its bound.
_ROUNDING = 1e-3


class Output(RelationBase):
    """A result of `api` has a property by itself, or compared with an argument.

    `place` names the result, such as "result.0".  `form` is, for example, "finite" (all elements
    are finite) or "equal": the result equals the argument `of` in `property`, such as "shape".
    """

    name = "output"
    typed = True
    forms = (
        {"form": _FLAGS, "api": str, "place": str},
        {"form": ("autocast",), "api": str, "place": str, "property": ("dtype",)},
        {"form": ("not_negative", "empty"), "api": str, "place": str, "property": ("value",)},
        {"form": ("equal",), "api": str, "place": str, "property": (*_EQUAL, "value"), "of": str},
        {"form": ("at_most",), "api": str, "place": str, "property": _AT_MOST, "of": str},
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes each claim that enough calls satisfy."""
        for frame in frames:
            for group in frame.groups.values():
                for claim in _proposed(frame, group):
                    passed, where = _passed(frame, group, claim)
                    if where.any() and passed[where].mean() >= _LEAST:
                        yield claim

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each call that has the values to compare."""
        for frame in frames:
            for group, claim in by_api(claims, frame.groups):
                passed, where = _passed(frame, group, claim)
                if where.any():
                    found.add(claim, group, passed, where)

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """Yields what follows from the claim that a result has the content or shape of an argument.

        If a result has the content of an argument, it also has its dtype, device, shape and sizes.
        If it has the shape of an argument, it also has its first and its last size.
        """
        params = dict(claim.params)
        if claim["form"] == "equal" and claim["property"] == "digest":
            for name in _EQUAL[:-1]:
                yield hypothesis("output", **{**params, "property": name})
        if claim["form"] == "equal" and claim["property"] == "shape":
            for name in ("shape[0]", "shape[-1]"):
                yield hypothesis("output", **{**params, "property": name})

    def redundant(self, found: Sequence[Invariant]) -> Collection[Hypothesis]:
        """The claims that a result has the dtype or the device of an argument other than the first.

        The claim on the first argument suffices: a result has the dtype of its input, while a bias
        in another dtype is converted.  A claim on another argument is kept if more programs support
        it than support the claim on the first argument.
        """
        alike: dict[tuple[object, ...], list[Invariant]] = defaultdict(list)
        for each in found:
            if each.claim["form"] == "equal" and each.claim["property"] in ("dtype", "device"):
                names = (each.claim[name] for name in ("api", "place", "property"))
                alike[(*names, each.precondition)].append(each)
        implied = set()
        for group in alike.values():
            first = min(group, key=lambda each: _position(each.claim.text("of")))
            implied |= {
                each.claim
                for each in group
                if each is not first and each.programs <= first.programs
            }
        return implied

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Whether one claim says that a result requires gradients, the other that it does not."""
        return all(claim[name] == other[name] for name in ("api", "place")) and {
            claim["form"],
            other["form"],
        } == {"requires_grad", "no_grad"}

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        2 if the API ensures what the claim says, and less if it may hold by chance.  `OWN` for
        finite norms of gradients, because gradients of a scaled loss may overflow, and for the
        arguments of modules that programs define: such a claim is checked only on the programs from
        which it was learned.  `CHOICE`, which needs seven
        programs as evidence, for layers whose result has the shape, a size or the content of an
        argument.
        """
        form, name, api = claim.text("form"), claim.text("property"), claim.text("api")
        if form == "finite" and api.startswith(("torch.nn.utils.", "torch.amp.GradScaler.")):
            return OWN
        if is_own_module(api) and claim["of"] is not None:
            return OWN
        if form == "equal" and is_architecture(api):
            return CHOICE
        if form in ("finite", "autocast"):
            return 2
        if form == "nonzero":
            return HABIT
        if form == "at_most" and name == "shape[0]":
            return OWN  # a batch is small by chance
        return 1 if name in ("dtype", "device", "digest", "shape[0]", "value") else 0

    def anywhere(self, claim: Hypothesis) -> bool:
        """Whether a claim may be judged in phases, modes and dtypes in which it was not seen.

        True for claims that a content, shape, size or number of a result equals that of an argument
        or is at most as large.  False for all other claims, and for all claims on
        `torch.nn.functional` or on a module's `forward`.
        """
        if is_architecture(claim.text("api")):
            return False
        name = claim["property"]
        return claim["form"] in ("equal", "at_most") and name not in ("dtype", "device", "norm")

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the API of the claim."""
        return Needs(frozenset({claim.text("api")}), contents=contents_of(claim))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each call when it returns."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        form, place, of = claim.text("form"), claim.text("place"), claim["of"]
        name = {"digest": "content"}.get(claim.text("property"), claim["property"])
        what = f"the {name} of {place} of {claim['api']}"
        if form == "equal" and name == "value":
            return Explanation(
                f"{place} of {claim['api']} equals {of}",
                "the call leaves something out, or counts in another way",
            )
        if form == "equal":
            return Explanation(
                f"{what} is that of {of}",
                "the call drops, repeats or converts a part of its arguments",
            )
        if form == "autocast":
            return Explanation(
                f"{what} is that of autocast", "the call is not reached by the autocast context"
            )
        if form == "at_most":
            return Explanation(f"{what} is at most {of}", "a limit is ignored")
        if form == "not_negative":
            return Explanation(f"{what} is not negative", "a loss or a count has the wrong sign")
        if form == "empty":
            list_of = place.removesuffix(_LENGTH)
            which = {"result.0": "missing_keys", "result.1": "unexpected_keys"}.get(list_of, place)
            return Explanation(
                f"{which} of {claim['api']} is empty",
                "the keys have another prefix, or strict=False hides that parts were not loaded",
            )
        said = {
            "finite": ("is finite", "an overflow, or a division by zero"),
            "nonzero": (
                "is not all zero",
                "inputs or parameters are zero, or everything is masked",
            ),
            "requires_grad": (
                "requires gradients",
                "detach, no_grad or frozen parameters cut the graph",
            ),
            "no_grad": ("requires no gradients", "a graph is kept where none is wanted"),
        }
        words, causes = said[form]
        return Explanation(f"{place} of {claim['api']} {words}", causes)


class _Checker(CallChecker):
    def left(self, call: Call) -> None:
        if not call.exception:
            for watch in self.watches.get(name_of(call), ()):
                passed = _judged(call, watch.claim)
                if passed is not None:
                    watch.example(lambda: self.of_call(call), passed, call)


def _position(place: str) -> tuple[bool, str]:
    """A sort key of arguments: the main input of the call first, then by name."""
    return place not in ("self", "arg.input", "arg.0"), place


def _proposed(frame: Frame, group: CallGroup) -> Iterator[Hypothesis]:
    """Yields the claims that fit the types of the results and arguments of the calls of an API."""
    results = [place for place in group.slots if place.startswith("result")]
    arguments = [place for place in group.slots if not place.startswith("result")]
    for place in results:
        slot = group.slots[place]
        tensor = frame.bits(slot, IS_TENSOR).any()
        if tensor:
            for form in _FLAGS:
                yield _claim(group.api, form, place)
            yield _claim(group.api, "autocast", place, "dtype")
        else:
            yield _claim(group.api, "not_negative", place, "value")
            if group.api.endswith(_LOADS) and place.endswith(_LENGTH):
                yield _claim(group.api, "empty", place, "value")
        number = not tensor and frame.numbers(slot, "value")[1].any()
        for of in arguments:
            other = group.slots[of]
            if number and not is_architecture(group.api) and frame.numbers(other, "value")[1].any():
                yield _claim(group.api, "equal", place, "value", of)
            if tensor and frame.bits(other, IS_TENSOR).any():
                for name in _EQUAL:
                    yield _claim(group.api, "equal", place, name, of)
            elif frame.numbers(other, "value")[1].any() and _LIMIT.search(of):
                counts = _COUNT.search(of)
                for name in _AT_MOST:
                    # Clipping returns the norm that the gradients had before.
                    if name == "norm" and (counts or _CLIPS.search(group.api)):
                        continue
                    yield _claim(group.api, "at_most", place, name, of)


def _passed(frame: Frame, group: CallGroup, claim: Hypothesis) -> tuple[Bools, Bools]:
    """Which calls of `group` satisfy the claim, and which calls have the values to judge it."""
    nowhere = np.zeros(len(group.rows), bool)
    slot = group.slots.get(claim.text("place"))
    if slot is None:
        return nowhere, nowhere
    form, name = claim.text("form"), claim.text("property")
    if form in _FLAGS:
        tensor = frame.bits(slot, IS_TENSOR)
        bit = {"finite": FINITE, "nonzero": ZERO}.get(form, REQUIRES_GRAD)
        found = frame.bits(slot, bit)
        if _asks_arguments(claim):
            # If no argument requires gradients, the result need not, or cannot.
            tensor &= np.any(
                [
                    frame.bits(other, REQUIRES_GRAD)
                    for where, other in group.slots.items()
                    if not where.startswith("result")
                ]
                or [nowhere],
                axis=0,
            )
        return (~found if form in ("nonzero", "no_grad") else found) & tensor, tensor
    if form == "not_negative":
        numbers, valid = frame.numbers(slot, name)
        return (numbers >= 0) & valid, valid
    if form == "empty":
        numbers, valid = frame.numbers(slot, name)
        return (numbers == 0) & valid, valid
    if form == "autocast":
        keys, valid = frame.keys(slot, name)
        wanted, has = frame.autocast_keys(frame.calls["meta"][group.rows])
        return (keys == wanted) & has & valid, has & valid
    other = group.slots.get(claim.text("of"))
    if other is None:
        return nowhere, nowhere
    if form == "equal" and name == "value":
        numbers, valid = frame.numbers(slot, name)
        bounds, has = frame.numbers(other, name)
        with np.errstate(invalid="ignore"):
            return numbers == bounds, valid & has & (np.maximum(numbers, bounds) >= SMALL)
    if form == "equal":
        keys, valid = frame.keys(slot, name)
        others, has = frame.keys(other, name)
        both = valid & has
        if name == "digest":  # zeros are equal by chance
            both &= ~(frame.bits(slot, ZERO) & frame.bits(other, ZERO))
        return (keys == others) & both, both
    numbers, valid = frame.numbers(slot, name)
    bounds, has = frame.numbers(other, "value")
    with np.errstate(invalid="ignore"):
        return _within(numbers, bounds) & valid & has, valid & has


def _judged(call: Call, claim: Hypothesis) -> bool | None:
    """Whether a call satisfies the claim; None if it does not have the values to judge it."""
    value = call.values.get(claim.text("place"))
    form, name = claim.text("form"), claim.text("property")
    if value is None:
        return None
    facts = value.tensor
    if form in _FLAGS:
        if facts is None or (_asks_arguments(claim) and not _depends(call)):
            return None
        return {
            "finite": facts.finite,
            "nonzero": not facts.zero,
            "requires_grad": facts.requires_grad,
            "no_grad": not facts.requires_grad,
        }[form]
    if form == "not_negative":
        number = number_of(value, name)
        return None if number is None else number >= 0
    if form == "empty":
        number = number_of(value, name)
        return None if number is None else number == 0
    if form == "autocast":
        wanted = call.meta.get("autocast")
        return None if facts is None or not isinstance(wanted, str) else facts.dtype == wanted
    other = call.values.get(claim.text("of"))
    if other is None:
        return None
    if form == "equal" and name == "value":
        mine, its = number_of(value), number_of(other)
        if mine is None or its is None or max(mine, its) < SMALL:
            return None
        return mine == its
    if form == "equal":
        key, of = property_of(value, name), property_of(other, name)
        if name == "digest" and _is_zero(value) and _is_zero(other):
            return None
        return None if key is None or of is None else key == of
    number, bound = number_of(value, name), number_of(other)
    return None if number is None or bound is None else bool(_within(_one(number), _one(bound))[0])


def _is_zero(value: Value) -> bool:
    return value.tensor is not None and value.tensor.zero


def _asks_arguments(claim: Hypothesis) -> bool:
    """Whether a claim is judged only where some argument requires gradients.

    The result of a function of torch depends on nothing else, as that of a module does.
    """
    function = claim.text("api").startswith("torch.nn.functional.")
    return claim["form"] == "requires_grad" or (claim["form"] == "no_grad" and function)


def _depends(call: Call) -> bool:
    """Whether some argument requires gradients."""
    return any(
        value.tensor is not None and value.tensor.requires_grad
        for place, value in call.values.items()
        if not place.startswith("result")
    )


def _within(numbers: Floats, bounds: Floats) -> Bools:
    found: Bools = numbers <= bounds + abs(bounds) * _ROUNDING
    return found


def _one(number: float) -> Floats:
    return np.array([number])


def _claim(api: str, form: str, place: str, name: str = "", of: str = "") -> Hypothesis:
    params = {"api": api, "form": form, "place": place}
    if name:
        params["property"] = name
    if of:
        params["of"] = of
    return hypothesis("output", **params)
