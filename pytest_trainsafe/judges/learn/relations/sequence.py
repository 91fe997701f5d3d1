"""Sequence: which API is called between two calls of another, and which is called first in a step.

"between", "once" and "times" look at two successive calls of `api` on a thread; calls of an
optimizer, a scheduler or DeepSpeed's engine must be on the same object.  `inner` is called in
between at least once, exactly once, or exactly `times` times.  This does not depend on where a step
ends, so it is the same whether a program calls `zero_grad` before the forward or after the
optimizer's step.  "order": in each step that calls both APIs, the first call of `api` comes before
the first call of `inner` that does not go on with the step before (`columns/entries.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, name_of
from pytest_trainsafe.judges.learn.columns.entries import (
    Entries,
    goes_on,
    owner_of,
    subject_of,
)
from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints
from pytest_trainsafe.judges.learn.events.events import Call, Plain
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant, hypothesis
from pytest_trainsafe.judges.learn.names import ZERO_GRAD
from pytest_trainsafe.judges.learn.relation import CHOICE, OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

#: APIs whose documentation says in which order they are to be called.
_ORDERED = ("torch.amp.GradScaler.", "deepspeed.DeepSpeedEngine.")
_STEPS = ("torch.optim.*.step", "torch.optim.lr_scheduler.*.step")
_ENGINE_STEP = "deepspeed.DeepSpeedEngine.step"
#: The function by which every backward passes, and those that clip gradients.
_BACKWARD, _CLIPPING = "torch.autograd.backward", "torch.nn.utils.clip_grad"

#: The least share of examples that must pass to propose a hypothesis.
_LEAST = 0.2


class CallSequence(RelationBase):
    """`inner` is called between two calls of `api`, or after the first call of `api` in a step."""

    name = "sequence"
    forms = (
        {"form": ("between", "once", "order"), "api": str, "inner": str},
        {"form": ("times",), "api": str, "inner": str, "times": int},
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes pairs of APIs that are not part of the model's architecture."""
        for frame in frames:
            table = Entries(frame)
            outer = [api for api in table.apis if not table.is_nested(api)]
            for api in outer:
                records, before, positions = table.consecutive(api)
                for inner in outer:
                    if inner == api or not len(records.rows):
                        continue
                    counts = table.between(inner, records, before, positions)
                    for form, passed in (("between", counts > 0), ("once", counts == 1)):
                        if passed.mean() >= _LEAST:
                            yield _claim(form, api, inner)
                    if counts.min() == counts.max() > 1:
                        yield _claim("times", api, inner, int(counts[0]))
            firsts = table.firsts
            for api in outer:
                for inner in outer:
                    # A step may end before or after gradients are cleared.
                    if (
                        api != inner
                        and ZERO_GRAD not in (api, inner)
                        and (both := firsts[api].keys() & firsts[inner].keys())
                    ):
                        leads = [firsts[api][step] < firsts[inner][step] for step in both]
                        if sum(leads) >= _LEAST * len(leads):
                            yield _claim("order", api, inner)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each call of `api` except the first, or each step with both APIs."""
        wanted: dict[str, list[Hypothesis]] = defaultdict(list)
        orders = []
        for claim in claims:
            if claim["form"] == "order":
                orders.append(claim)
            else:
                wanted[claim.text("api")].append(claim)
        for frame in frames:
            table = Entries(frame)
            for api in sorted(wanted.keys() & set(table.apis)):
                records, before, positions = table.consecutive(api)
                for inner, of_inner in _by_inner(wanted[api]).items():
                    counts = table.between(inner, records, before, positions)
                    for claim in of_inner:
                        found.add(claim, records, _passed(claim, counts))
            for claim in orders:
                records, passed = table.ordered(claim.text("api"), claim.text("inner"))
                if len(passed):
                    found.add(claim, records, passed)

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """For a claim of the form "once" or "times", the claim "between", which it implies.

        "once": `inner` is called exactly once between two calls of `api`; "between": at least once.
        """
        if claim["form"] in ("once", "times"):
            yield _claim("between", claim.text("api"), claim.text("inner"))

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Whether the claims give two APIs opposite orders."""
        return (
            claim["form"] == other["form"] == "order"
            and claim["api"] == other["inner"]
            and claim["inner"] == other["api"]
        )

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        `OWN` for most claims: authors choose how a loop is built, so such a claim is checked only
        on the programs from which it was learned.  `CHOICE`, which needs seven programs as
        evidence, for a backward before its gradients are used by an optimizer or by clipping.  -1,
        which needs four, for what the documentation of a library prescribes: the order of a
        gradient scaler's call and another call in a step, that of the steps of an optimizer and its
        scheduler, and what is called between two steps of DeepSpeed's engine.
        """
        form, apis = claim["form"], (claim.text("api"), claim.text("inner"))
        if form == "order" and (any(api.startswith(_ORDERED) for api in apis) or apis == _STEPS):
            return -1
        if form == "between" and apis[0] == _ENGINE_STEP:
            return -1
        used = any(api == "torch.optim.*.step" or api.startswith(_CLIPPING) for api in apis)
        return CHOICE if form in ("between", "order") and used and _BACKWARD in apis else OWN

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the class, the arguments and the object of a call.

        These do not decide which APIs a loop calls.  Only `self.has_gradients` is allowed, since a
        loop may handle a step without gradients in another way.
        """
        if field == "self.has_gradients":
            return False
        return field == "class" or field.partition(".")[0] in ("arg", "self")

    def redundant(self, found: Sequence[Invariant]) -> Collection[Hypothesis]:
        """The claims on an order, or on a call exactly once, that follow from other claims.

        A claim "A before C" follows from the claims "A before B" and "B before C".  Two APIs
        alternate if each is called exactly once between two calls of the other.  The claims that
        two APIs alternate follow if both alternate with a third API.
        """
        always = {each.claim: each for each in found if each.precondition.always}
        return {*_round_trips(always), *_detours(always)}

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs both APIs."""
        apis = frozenset({claim.text("api"), claim.text("inner")})
        return Needs(apis, contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that counts calls of `inner`, and notes the first calls in each step."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        api, inner = claim.text("api"), claim.text("inner")
        if claim["form"] == "order":
            return Explanation(
                f"in a step, {api} is called before {inner}", "the calls are in the wrong order"
            )
        once = "exactly once" if claim["form"] == "once" else "at least once"
        once = f"exactly {claim['times']} times" if claim["form"] == "times" else once
        return Explanation(
            f"between two calls of {api}, {inner} is called {once}",
            f"the loop forgets {inner}" + (" or repeats it" if once.startswith("exactly") else ""),
        )


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        #: Watches of pairs by the API that follows itself, and by the API in between.
        self._pairs: dict[str, list[Watch]] = defaultdict(list)
        self._inner: dict[str, list[Watch]] = defaultdict(list)
        self._first: dict[str, list[Watch]] = defaultdict(list)
        self._second: dict[str, list[Watch]] = defaultdict(list)
        for watch in watches:
            order = watch.claim["form"] == "order"
            (self._first if order else self._pairs)[watch.claim.text("api")].append(watch)
            (self._second if order else self._inner)[watch.claim.text("inner")].append(watch)
        #: Calls of `inner` since the last call of `api`, by watch and thread, and by object.
        self._counts: dict[tuple[int, int], dict[int, int]] = {}
        self._pending: dict[int, list[tuple[Watch, int]]] = {}
        self._step: object = None
        self._seen: dict[str, Call] = {}
        #: The watches whose `inner` has gone on with the step before, in this step.
        self._going: set[int] = set()
        #: By watch, the step of the last call of `api`, and what `inner` was called for since.
        self._turns: dict[int, tuple[object, set[int]]] = {}

    def reads_calls(self, api: str) -> bool:
        return any(api in each for each in (self._pairs, self._inner, self._first, self._second))

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return False

    def entered(self, call: Call) -> None:
        api = name_of(call)
        for watch in self._inner.get(api, ()):
            counts = self._counts.get((id(watch), call.thread), {})
            for owner in counts:
                counts[owner] += 1
        for watch in self._pairs.get(api, ()):
            counts = self._counts.setdefault((id(watch), call.thread), {})
            owner = owner_of(api, call)
            if owner in counts:
                self._pending.setdefault(id(call), []).append((watch, counts[owner]))
            counts[owner] = 0
        if api in self._first or api in self._second:
            self._ordered(api, call)

    def left(self, call: Call) -> None:
        for watch, count in self._pending.pop(id(call), ()):
            if not call.exception:
                passed = bool(_passed(watch.claim, np.array([count]))[0])
                watch.example(lambda: self.of_call(call), passed, call, f"called {count} times")

    def _ordered(self, api: str, call: Call) -> None:
        step = call.meta.get("step")
        if isinstance(step, int):
            self._first_of(api, call, step)
        for watch in self._second.get(api, ()):
            self._turns.setdefault(id(watch), (None, set()))[1].add(subject_of(api, call))
        for watch in self._first.get(api, ()):
            self._turns[id(watch)] = step, set()

    def _first_of(self, api: str, call: Call, step: int) -> None:
        if step != self._step:
            self._step, self._seen, self._going = step, {}, set()
        first = api not in self._seen
        for watch in self._second.get(api, ()):
            leads = watch.claim.text("api") in self._seen
            if not first and not (leads and id(watch) in self._going):
                continue
            if leads:
                self._going.discard(id(watch))
                watch.example(lambda: self.contexts.features(call.meta), True, call)
            else:
                last, earlier = self._turns.get(id(watch), (None, set()))
                if goes_on(last, step, earlier, subject_of(api, call)):
                    self._going.add(id(watch))
        for watch in self._first.get(api, ()) if first else ():
            other = self._seen.get(watch.claim.text("inner"))
            if other is not None and id(watch) not in self._going:
                self._late(watch, other, call)
        if first:
            self._seen[api] = call

    def _late(self, watch: Watch, other: Call, call: Call) -> None:
        """Judge a step as failed: `call` came after `other`, but should have come before it."""
        detail = f"{watch.claim.text('api')} was called after it"
        watch.example(lambda: self.contexts.features(other.meta), False, other, detail)


def _round_trips(always: Mapping[Hypothesis, Invariant]) -> set[Hypothesis]:
    """The claims that two APIs alternate, if both also alternate with a third API.

    Two APIs alternate if each is called exactly once between two calls of the other: there is a
    claim of the form "once" for each.  The third API must rank above both.  APIs are ranked by the
    largest number of programs that satisfy one of their "once" claims (more is higher), then by the
    number of these claims (more is higher), then by name (alphabetically first is highest).
    """
    pairs = {
        (claim.text("api"), claim.text("inner")): each.programs
        for claim, each in always.items()
        if claim["form"] == "once"
    }
    apis = sorted({api for pair in pairs for api in pair})
    mutual = {
        api: {other for other in apis if {(api, other), (other, api)} <= pairs.keys()}
        for api in apis
    }
    implied = set()
    for api, other in pairs:
        leaders = mutual[api] & mutual[other] if other in mutual[api] else set()
        for leader in leaders:
            rank, others = _weight(leader, pairs), (_weight(api, pairs), _weight(other, pairs))
            if rank > max(others):
                implied.add(_claim("once", api, other))
    return implied


def _weight(api: str, pairs: Mapping[tuple[str, str], int]) -> tuple[int, int, list[int]]:
    own = [programs for pair, programs in pairs.items() if api in pair]
    # Of equals, the first in the alphabet.
    return max(own), len(own), [-ord(letter) for letter in api]


def _detours(always: Mapping[Hypothesis, Invariant]) -> set[Hypothesis]:
    """The claims "A before C" that follow from the claims "A before B" and "B before C"."""
    orders = {
        (claim.text("api"), claim.text("inner")): each.programs
        for claim, each in always.items()
        if claim["form"] == "order"
    }
    after: dict[str, set[str]] = defaultdict(set)
    for api, inner in orders:
        after[api].add(inner)
    implied = set()
    for (api, inner), programs in orders.items():
        for between in after[api]:
            if inner in after.get(between, ()):
                known = min(orders[api, between], orders[between, inner])
                # Two APIs that each come first would make each other redundant.
                if known >= programs and (between, api) not in orders:
                    implied.add(_claim("order", api, inner))
    return implied


def _by_inner(claims: Iterable[Hypothesis]) -> Mapping[str, list[Hypothesis]]:
    found: dict[str, list[Hypothesis]] = defaultdict(list)
    for claim in claims:
        found[claim.text("inner")].append(claim)
    return found


def _passed(claim: Hypothesis, counts: Ints) -> Bools:
    """Which of these numbers of calls of `inner` satisfy a claim of a form other than "order"."""
    if claim["form"] == "between":
        return np.asarray(counts > 0, bool)
    return np.asarray(counts == (claim["times"] or 1), bool)


def _claim(form: str, api: str, inner: str, times: int = 0) -> Hypothesis:
    more: dict[str, Plain] = {"times": times} if times else {}
    return hypothesis("sequence", form=form, api=api, inner=inner, **more)
