"""Sequence: what happens between two calls of an API, and which of two comes first in a step.

"between" and "once" look at two calls of `api` that follow each other on a thread, of an optimizer
or a scheduler those on the same object: `inner` is called in between, or exactly once.  This does
not depend on where a program ends its steps, so `zero_grad` before the forward and after the
optimizer's step are alike.  "order" compares the first calls of two APIs in each step that has
both.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from pytest_trainsafe.judge.learn.check.checker import Checker, name_of
from pytest_trainsafe.judge.learn.columns.frame import Bools, Frame, Ints, Records
from pytest_trainsafe.judge.learn.evidence import Examples
from pytest_trainsafe.judge.learn.invariant import Hypothesis, Invariant, hypothesis
from pytest_trainsafe.judge.learn.names import ZERO_GRAD, is_architecture
from pytest_trainsafe.judge.learn.relation import OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judge.learn.watch import Contexts, Watch
from pytest_trainsafe.trace.observed.events import Call
from pytest_trainsafe.trace.observed.table import NONE

#: Switches between training and evaluation, and new objects, which programs make when they like.
_UNORDERED = re.compile(r"\.(train|eval|__init__)$")

#: APIs of objects that each go their own way: two schedulers may step between two backwards.
_OWNED = "torch.optim."

#: What ends each round of training.  Backwards may follow each other, as may clearings.
_ROUND = "torch.optim.*.step"

#: The least share of examples that pass, for it to be worth a hypothesis.
_LEAST = 0.2


class CallSequence(RelationBase):
    """Calls of `inner` between calls of `api`, or the order of their first calls in a step."""

    name = "sequence"
    forms = ({"form": ("between", "once", "order"), "api": str, "inner": str},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Pairs of APIs that are not part of the model's architecture."""
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
        """One example for each call of the API but the first, or for each step with both."""
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
                        once = claim["form"] == "once"
                        found.add(claim, records, counts == 1 if once else counts > 0)
            for claim in orders:
                records, passed = table.ordered(claim.text("api"), claim.text("inner"))
                if len(passed):
                    found.add(claim, records, passed)

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """Exactly once is at least once."""
        if claim["form"] == "once":
            yield _claim("between", claim.text("api"), claim.text("inner"))

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Two APIs cannot each come first."""
        return (
            claim["form"] == other["form"] == "order"
            and claim["api"] == other["inner"]
            and claim["inner"] == other["api"]
        )

    def prior(self, claim: Hypothesis) -> int:
        """Whether a loop has a scheduler, clips or steps twice is the author's choice."""
        if claim["form"] == "once":
            return OWN
        # Programs iterate loaders, step schedulers and clip by epoch, by step or by micro-batch.
        return -1 if claim["form"] == "order" or claim["api"] == _ROUND else -5

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """What an API is called with does not decide what a loop calls around it.

        A step without gradients is another thing than one with gradients.
        """
        if field == "self.has_gradients":
            return False
        return field == "class" or field.partition(".")[0] in ("arg", "self")

    def redundant(self, found: Sequence[Invariant]) -> Collection[Hypothesis]:
        """Orders that follow from two others, and rounds that follow from those of one API."""
        always = {each.claim: each for each in found if each.precondition.always}
        return {*_round_trips(always), *_detours(always)}

    def needs(self, claim: Hypothesis) -> Needs:
        """Both APIs."""
        return Needs(frozenset({claim.text("api"), claim.text("inner")}))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """Counts calls since the last one, and notes the first of each step."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        api, inner = claim.text("api"), claim.text("inner")
        if claim["form"] == "order":
            return Explanation(
                f"in a step, {api} is called before {inner}", "the calls are in the wrong order"
            )
        once = "exactly once" if claim["form"] == "once" else "at least once"
        return Explanation(
            f"between two calls of {api}, {inner} is called {once}",
            f"the loop forgets {inner}" + (" or repeats it" if once == "exactly once" else ""),
        )


class Entries:
    """The entries of the APIs that a sequence may name."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.apis = sorted(
            api for api in frame.groups if not is_architecture(api) and not _UNORDERED.search(api)
        )
        calls = frame.calls
        code = {api: index for index, api in enumerate(frame.apis)}
        self._rows = {api: frame.entries(code[api]) for api in self.apis}
        self._steps = frame.steps_of(calls["meta"])
        self.threads: list[int] = np.unique(calls["thread"]).tolist()
        self._split = {
            (api, thread): calls["entry"][rows[calls["thread"][rows] == thread]]
            for api, rows in self._rows.items()
            for thread in self.threads
        }
        self.firsts: Mapping[str, Mapping[int, int]] = {
            api: self._first_entries(rows) for api, rows in self._rows.items()
        }

    def is_nested(self, api: str) -> bool:
        """Whether every call of an API lies in a call of another one.

        What it follows then says no more than what the outer call follows.
        """
        calls = self.frame.calls
        parents = calls["parent"][self._rows[api]]
        inside = parents != NONE
        outer = self.frame.api[parents[inside]]
        return bool(inside.all() and (outer != self.frame.api[self._rows[api]][inside]).all())

    def consecutive(self, api: str) -> tuple[Records, Ints, Ints]:
        """The calls of an API with an earlier one on their thread: when each one was entered.

        Returns the records, the entry of the earlier call and that of the call itself.
        """
        group = self.frame.groups[api]
        calls = self.frame.calls
        entries = calls["entry"][group.rows]
        before = np.full(len(entries), NONE, np.int64)
        rows = self._rows[api]
        owners = self._owners(api)
        for thread, owner in itertools.product(self.threads, np.unique(owners)):
            every = rows[(calls["thread"][rows] == thread) & (owners == owner)]
            here = np.isin(group.rows, every)
            times = calls["entry"][every]
            at = np.searchsorted(times, entries[here])
            if len(times):
                before[here] = np.where(at > 0, times[np.maximum(at - 1, 0)], NONE)
        has = before != NONE
        records = Records(group.rows[has], group.codes[has], group.features)
        return records, before[has], entries[has]

    def _owners(self, api: str) -> Ints:
        """The identity of the object of each call of an API; 0 where objects do not matter."""
        rows = self._rows[api]
        owners = np.zeros(len(rows), np.int64)
        group = self.frame.attempts.get(api)
        if group is not None and api.startswith(_OWNED) and "self" in group.slots:
            slot = group.slots["self"]
            known = np.where(slot == NONE, 0, self.frame.values["identity"][np.maximum(slot, 0)])
            owners[np.searchsorted(rows, group.rows)] = known
        return owners

    def between(self, inner: str, records: Records, before: Ints, entries: Ints) -> Ints:
        """How many calls of `inner` were entered between the two calls of each record."""
        counts = np.zeros(len(entries), np.int64)
        if inner in self._rows:
            threads = self.frame.calls["thread"][records.rows]
            for thread in self.threads:
                here = threads == thread
                times = self._split[inner, thread]
                counts[here] = np.searchsorted(times, entries[here])
                counts[here] -= np.searchsorted(times, before[here])
        return counts

    def ordered(self, api: str, inner: str) -> tuple[Records, Bools]:
        """The first call of `inner` in each step that has both, and whether `api` came first."""
        if api not in self._rows or inner not in self._rows:
            return Records(np.zeros(0, np.int64), np.zeros(0, np.int64), []), np.zeros(0, bool)
        firsts, others = self.firsts[api], self.firsts[inner]
        both = sorted(firsts.keys() & others.keys())
        calls = self.frame.calls
        rows = np.searchsorted(calls["entry"], [others[step] for step in both])
        # Whether the order is right is known at the later of the two calls, so that the context
        # is the only thing that both have.
        codes, first = np.unique(
            self.frame.context_of_meta[calls["meta"][rows]], return_index=True
        )[:2]
        lookup = np.searchsorted(codes, self.frame.context_of_meta[calls["meta"][rows]])
        features = [self.frame.context(int(calls["meta"][rows[at]])) for at in first]
        passed = np.array([firsts[step] < others[step] for step in both], bool)
        return Records(rows, lookup, features), passed

    def _first_entries(self, rows: Ints) -> dict[int, int]:
        """The first entry in each step."""
        inside = rows[self._steps[rows] != NONE]
        steps, first = np.unique(self._steps[inside], return_index=True)
        entries = self.frame.calls["entry"][inside[first]]
        return dict(zip(steps.tolist(), entries.tolist(), strict=True))


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
                once = watch.claim["form"] == "once"
                passed = count == 1 if once else count > 0
                watch.example(lambda: self.of_call(call), passed, call, f"called {count} times")

    def _ordered(self, api: str, call: Call) -> None:
        step = call.meta.get("step")
        if step is None:
            return
        if step != self._step:
            self._step, self._seen = step, {}
        if api in self._seen:
            return
        self._seen[api] = call
        for watch in self._second.get(api, ()):
            if watch.claim.text("api") in self._seen:
                watch.example(lambda: self.contexts.features(call.meta), True, call)
        for watch in self._first.get(api, ()):
            other = self._seen.get(watch.claim.text("inner"))
            if other is not None:
                self._late(watch, other, call)

    def _late(self, watch: Watch, other: Call, call: Call) -> None:
        """`call` should have come before `other`."""
        detail = f"{watch.claim.text('api')} was called after it"
        watch.example(lambda: self.contexts.features(other.meta), False, other, detail)


def owner_of(api: str, call: Call) -> int:
    """The identity of the object of a call; 0 where objects do not matter."""
    found = call.values.get("self") if api.startswith(_OWNED) else None
    return 0 if found is None else found.identity


def _round_trips(always: Mapping[Hypothesis, Invariant]) -> set[Hypothesis]:
    """Of APIs that alternate with each other, the pairs without the one that leads them.

    The leader is that with the most programs and pairs.
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
    """The orders of two APIs of which a third is always in between."""
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


def _claim(form: str, api: str, inner: str) -> Hypothesis:
    return hypothesis("sequence", form=form, api=api, inner=inner)
