"""Renewed: between two calls of an API on one object, a kind of variable is cleared or set anew.

Gradients are cleared between two steps of an optimizer.  It does not matter how: by `zero_grad`, by
an assignment, or by a framework that takes the gradients away.  A step is over when it returns: a
closure may clear the gradients in it.  Only gradients of parameters count that the optimizer holds,
where that was recorded.  Gradients that no backward adds to do not pile up: a program may assign
them, as it does after `torch.autograd.grad`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import (
    Checker,
    by_param,
    name_of,
    variable_of,
)
from pytest_trainsafe.judges.learn.columns.entries import Entries, owner_of
from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints
from pytest_trainsafe.judges.learn.columns.setups import holders, holds_kind, owners, trains
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.setup_text import SETUP, optimizers_in
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.features import kind_of
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.names import ZERO_GRAD
from pytest_trainsafe.judges.learn.relation import Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_STEP = "torch.optim.*.step"
_PARAMETERS = ("torch.nn.Parameter", "torch.distributed.tensor.DTensor")
_GRADIENTS = tuple((each, "grad") for each in _PARAMETERS)
Name = tuple[str, str]

#: Calls around which gradients are compared, so that a clearing by hand is noticed.
_BACKWARD = ("torch.Tensor.backward", "torch.autograd.backward")
_COMPARED = (ZERO_GRAD, *_BACKWARD)
#: The changes by which a variable begins anew.
_ANEW = ("cleared", "set")


class Renewed(RelationBase):
    """Between two calls of `api`, `attribute` of some `variable` is cleared or set from nothing.

    `api` is the step of an optimizer, `variable` a kind of parameter, and `attribute` "grad".
    """

    name = "renewed"
    forms = ({"api": (_STEP,), "variable": _PARAMETERS, "attribute": ("grad",)},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes one claim for each kind of parameter, if optimizer steps were observed."""
        for name in _GRADIENTS:
            if any(_STEP in frame.groups and name in frame.variables for frame in frames):
                yield hypothesis("renewed", api=_STEP, variable=name[0], attribute=name[1])

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each step of an optimizer but its first, after a backward."""
        for frame in frames:
            if _STEP not in frame.groups:
                continue
            records, before, _ = Entries(frame).consecutive(_STEP)
            if not len(records.rows):
                continue
            exits = frame.calls["exit"]
            ends, starts = exits[records.rows], exits[np.searchsorted(frame.calls["entry"], before)]
            group = frame.groups[_STEP]
            at = np.searchsorted(group.rows, records.rows)
            names, held = np.array(owners(frame, group), object)[at], holders(frame)
            added = _backwards(frame, starts, ends)
            for claim in claims:
                name = claim.text("variable"), claim.text("attribute")
                if name not in frame.variables:
                    continue
                rows = np.flatnonzero(_renewals(frame, name))
                passed = np.zeros(len(ends), bool)
                for owner in set(names):
                    here = np.array([each == owner for each in names], bool)
                    moments = frame.changes["position"][_of_owner(frame, rows, owner, held)]
                    first, last = (np.searchsorted(moments, each[here]) for each in (starts, ends))
                    passed[here] = last > first
                where = added & trains(frame, group, name[0])[at]
                found.add(claim, records, passed, where)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the class, the arguments and the object of a step.

        Only `self.has_gradients` is allowed.  What a step is called with does not decide whether
        gradients were cleared before.
        """
        if field == "self.has_gradients":
            return False
        return field == "class" or field.partition(".")[0] in ("arg", "self")

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`): 1, the neutral number.

        The claim needs no additional programs as evidence, because no author adds the gradients of
        two steps on purpose.
        """
        return 1

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the steps of optimizers, the gradients, `zero_grad` and `backward`.

        The observer compares the gradients before and after each of these calls, and so notices a
        clearing by hand.
        """
        name = claim.text("variable"), claim.text("attribute")
        apis = frozenset({_STEP, *_COMPARED})
        return Needs(apis, frozenset({name, (name[0], SETUP)}), contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each step of an optimizer but its first.

        It notes which kinds of gradients were cleared or set since the optimizer's previous step.
        """
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        return Explanation(
            f"between two calls of {claim['api']}, {claim['attribute']} of some "
            f"{claim['variable']} is cleared",
            "zero_grad is missing, or works on other parameters, so that gradients pile up",
        )


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._watches = by_param(watches, "api")
        #: The gradients that begin anew since the last call, as a kind and the name of the
        #: parameter, by thread and optimizer, and the kinds that were ever observed.
        self._anew: dict[int, dict[int, set[tuple[Name, str]]]] = defaultdict(dict)
        self._known: set[Name] = set()
        #: The optimizers that hold each parameter, and those that hold any of a kind.
        self._held: dict[str, set[str]] = {}
        self._holders: dict[str, set[str]] = defaultdict(set)
        #: The optimizers, by thread, whose last step was before the last backward.
        self._added: dict[int, set[int]] = defaultdict(set)

    def reads_calls(self, api: str) -> bool:
        return api in self._watches or api in _BACKWARD

    def reads_changes(self, variable: Name) -> bool:
        return variable in _GRADIENTS or variable[1] == SETUP

    def changed(self, change: Change) -> None:
        name = variable_of(change)
        if name[1] == SETUP:
            optimizers = optimizers_in(str(change.after.plain))
            self._held.setdefault(change.object, set()).update(optimizers)
            self._holders[name[0]].update(optimizers)
        elif name in _GRADIENTS:
            self._known.add(name)
            if change.changed and kind_of(change) in _ANEW:
                for owners in self._anew.values():
                    for anew in owners.values():
                        anew.add((name, change.object))

    def left(self, call: Call) -> None:
        api = name_of(call)
        if api in _BACKWARD:
            for thread, every in self._anew.items():
                self._added[thread].update(every)
            return
        if api not in self._watches:
            return
        owners, number = self._anew[call.thread], owner_of(api, call)
        anew, owners[number] = owners.get(number), set()
        added = number in self._added[call.thread]
        self._added[call.thread].discard(number)
        if anew is None or call.exception or not added:
            return
        called = call.values.get("self.name")
        owner = "" if called is None else str(called.plain)
        names = {name for name, parameter in anew if _holds(owner, parameter, self._held)}
        for watch in self._watches[api]:
            kind = watch.claim.text("variable"), watch.claim.text("attribute")
            if kind in self._known and holds_kind(owner, kind[0], self._holders):
                watch.example(lambda: self.of_call(call), kind in names, call)


def _holds(owner: str, parameter: str, held: Mapping[str, Collection[str]]) -> bool:
    """Whether an optimizer holds a parameter; True if that was not recorded."""
    optimizers = held.get(parameter)
    return not owner or not optimizers or owner in optimizers


def _backwards(frame: Frame, starts: Ints, ends: Ints) -> Bools:
    """Whether a backward has added to gradients between each of these moments."""
    rows = [frame.groups[api].rows for api in _BACKWARD if api in frame.groups]
    if not rows:
        return np.zeros(len(ends), bool)
    moments = np.sort(frame.calls["exit"][np.concatenate(rows)])
    return np.asarray(np.searchsorted(moments, ends) > np.searchsorted(moments, starts), bool)


def _of_owner(frame: Frame, rows: Ints, owner: str, held: Mapping[str, set[str]]) -> Ints:
    """Those changes of gradients whose parameter the optimizer `owner` holds."""
    objects, texts = frame.changes["object"][rows], frame.table.texts
    own = [code for code in np.unique(objects) if _holds(owner, texts[int(code)], held)]
    return rows[np.isin(objects, own)]


def _renewals(frame: Frame, name: Name) -> Bools:
    """Which rows of `Table.changes` clear a value of a variable, or set one from nothing.

    `name` is the kind of the variable and its attribute, as ("torch.nn.Parameter", "grad").
    """
    kinds, kind = frame.kinds
    anew = [code for code, each in enumerate(kinds) if each in _ANEW]
    code = frame.variables.index(name)
    changed = frame.changes["changed"] & (frame.variable_of_change == code)
    return np.asarray(changed & np.isin(kind, anew), bool)
