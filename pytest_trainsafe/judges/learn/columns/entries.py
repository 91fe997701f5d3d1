"""Finds when the calls of an API begin, and what is called between two of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints, Records
from pytest_trainsafe.judges.learn.events.events import Call
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.names import LIBRARIES, family, is_architecture

#: Constructors, and switches between training and evaluation.  Programs may call them anywhere.
_UNORDERED = re.compile(r"\.(train|eval|__init__)$")

#: APIs whose calls are compared only on the same object: two schedulers may step between two
#: backwards.
_OWNED = ("torch.optim.", "deepspeed.DeepSpeedEngine.")
#: APIs that are called for each of several optimizers.
_FOR_OPTIMIZERS = ("torch.amp.GradScaler.step", "torch.amp.GradScaler.unscale_")


class Entries:
    """The positions in time at which calls begin, for the APIs that a claim may name.

    `firsts` maps each API and step to the position of the first call of the API in the step.
    """

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
        """Whether every call of an API lies in a call of another one of a library.

        Such an API is left out: its order says no more than that of the outer call.  A function of
        the program does not replace what it calls: rules about `zero_grad` hold for other programs.
        """
        calls = self.frame.calls
        parents = calls["parent"][self._rows[api]]
        if not (parents != NONE).all():
            return False
        texts = self.frame.table.texts
        outer = {family(texts[int(text)])[0] for text in np.unique(calls["api"][parents])}
        return api not in outer and all(each.partition(".")[0] in LIBRARIES for each in outer)

    def consecutive(self, api: str) -> tuple[Records, Ints, Ints]:
        """The calls of an API that follow an earlier call of the same API on the same thread.

        For an API in `_OWNED`, the earlier call must also be on the same object.  Returns the
        calls, the position at which the previous call of each began, and the position at which
        each call began.
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
        """The number of the object on which each call of an API was made, for APIs in `_OWNED`.

        0 for other APIs, whose calls are compared whatever their objects are.
        """
        return self._numbers(api, "self" if api.startswith(_OWNED) else "")

    def _numbers(self, api: str, place: str) -> Ints:
        """The number of the object that is at `place` of each call of an API; 0 if none is."""
        rows = self._rows[api]
        found = np.zeros(len(rows), np.int64)
        group = self.frame.attempts.get(api)
        if group is not None and place in group.slots:
            slot = group.slots[place]
            known = np.where(slot == NONE, 0, self.frame.values["identity"][np.maximum(slot, 0)])
            found[np.searchsorted(rows, group.rows)] = known
        return found

    def between(self, inner: str, records: Records, before: Ints, entries: Ints) -> Ints:
        """How many calls of `inner` begin between the two calls of each pair from `consecutive`.

        `before` and `entries` are the positions at which the calls of each pair begin.
        """
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
        """Returns the first call of `inner` in each step in which `api` is called too.

        Also returns whether the first call of `api` in the step came before it.  Calls of `inner`
        that go on with the turn of the step before are left out (`goes_on`).
        """
        if api not in self._rows or inner not in self._rows:
            return Records(np.zeros(0, np.int64), np.zeros(0, np.int64), []), np.zeros(0, bool)
        firsts, others = self.firsts[api], dict(self.firsts[inner])
        for step in firsts.keys() & others.keys():
            if others[step] < firsts[step] and self._goes_on(api, inner, step):
                entries = self.frame.calls["entry"][self._rows[inner]]
                at = int(np.searchsorted(entries, firsts[step]))
                if at < len(entries) and self._steps[self._rows[inner][at]] == step:
                    others[step] = int(entries[at])
                else:
                    del others[step]
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

    def _goes_on(self, api: str, inner: str, step: int) -> bool:
        """Whether the first call of `inner` in a step goes on with the step before (`goes_on`)."""
        apis, inners = (self.frame.calls["entry"][self._rows[each]] for each in (api, inner))
        first = int(np.searchsorted(inners, self.firsts[inner][step]))
        last = int(np.searchsorted(apis, inners[first])) - 1
        if last < 0:
            return False
        before = int(np.searchsorted(inners, apis[last]))
        subjects = self._subjects(inner)[before : first + 1].tolist()
        return goes_on(int(self._steps[self._rows[api][last]]), step, subjects[:-1], subjects[-1])

    def _subjects(self, api: str) -> Ints:
        """The number of the object that each call of an API is about (`subject_of`); 0 for none."""
        return self._numbers(api, subject(api))

    def _first_entries(self, rows: Ints) -> dict[int, int]:
        """Maps each step to the position at which the first of the calls in `rows` begins."""
        inside = rows[self._steps[rows] != NONE]
        steps, first = np.unique(self._steps[inside], return_index=True)
        entries = self.frame.calls["entry"][inside[first]]
        return dict(zip(steps.tolist(), entries.tolist(), strict=True))


def goes_on(last: object, step: int, earlier: Collection[int], now: int) -> bool:
    """Whether a call of `inner` that precedes those of `api` in a step belongs to the step before.

    A step may end with the first of several optimizers that step after one backward: then the call
    is for another object than those since that backward.  `last` is the step of the last call of
    `api`; `earlier` has the numbers of what `inner` was called for since, and `now` is that of the
    call.
    """
    return step > 0 and last == step - 1 and bool(earlier) and 0 != now not in earlier


def subject(api: str) -> str:
    """The place of the object that calls of an API are about; "" if none is known."""
    if api.startswith(_OWNED):
        return "self"
    return "arg.optimizer" if api in _FOR_OPTIMIZERS else ""


def subject_of(api: str, call: Call) -> int:
    """The number of the object that a call is about; 0 if none is known."""
    found = call.values.get(subject(api))
    return 0 if found is None else found.identity


def owner_of(api: str, call: Call) -> int:
    """The number of the object on which `call` was made, if its API is in `_OWNED`.

    0 for calls of other APIs, which are compared whatever their objects are.
    """
    found = call.values.get("self") if api.startswith(_OWNED) else None
    return 0 if found is None else found.identity
