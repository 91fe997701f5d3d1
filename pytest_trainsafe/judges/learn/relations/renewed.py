"""Renewed: between two calls of an API on one object, a kind of variable is cleared or set anew.

Gradients are cleared between two steps of an optimizer.  It does not matter how: by `zero_grad`, by
an assignment, or by a framework that takes the gradients away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import (
    Checker,
    by_param,
    name_of,
    variable_of,
)
from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.features import kind_of
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.names import ZERO_GRAD
from pytest_trainsafe.judges.learn.relation import Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.relations.sequence import Entries, owner_of
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_STEP = "torch.optim.*.step"
_PARAMETERS = ("torch.nn.Parameter", "torch.distributed.tensor.DTensor")
_GRADIENTS = tuple((each, "grad") for each in _PARAMETERS)
Name = tuple[str, str]

#: Calls around which gradients are compared, so that a clearing by hand is noticed.
_COMPARED = (ZERO_GRAD, "torch.Tensor.backward", "torch.autograd.backward")
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
        """Adds an example for each step of an optimizer but its first."""
        for frame in frames:
            if _STEP not in frame.groups:
                continue
            records, before, entries = Entries(frame).consecutive(_STEP)
            for claim in claims:
                name = claim.text("variable"), claim.text("attribute")
                if name in frame.variables:
                    moments = frame.changes["position"][_renewals(frame, name)]
                    counts = np.searchsorted(moments, entries) - np.searchsorted(moments, before)
                    found.add(claim, records, np.asarray(counts > 0, bool))

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
        return Needs(apis, frozenset({name}), contents=frozenset())

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
        #: The kinds of gradients that begin anew since the last call, by thread and object, and
        #: those that were ever observed.
        self._anew: dict[int, dict[int, set[Name]]] = defaultdict(dict)
        self._pending: dict[int, set[Name]] = {}
        self._known: set[Name] = set()

    def reads_calls(self, api: str) -> bool:
        return api in self._watches

    def reads_changes(self, variable: Name) -> bool:
        return variable in _GRADIENTS

    def entered(self, call: Call) -> None:
        api = name_of(call)
        if api in self._watches:
            owner, anew = owner_of(api, call), self._anew[call.thread]
            if owner in anew:
                self._pending[id(call)] = anew[owner]
            anew[owner] = set()

    def changed(self, change: Change) -> None:
        name = variable_of(change)
        if name in _GRADIENTS:
            self._known.add(name)
            if change.changed and kind_of(change) in _ANEW:
                for anew in self._anew.values():
                    for names in anew.values():
                        names.add(name)

    def left(self, call: Call) -> None:
        names = self._pending.pop(id(call), None)
        if names is not None and not call.exception:
            for watch in self._watches[name_of(call)]:
                name = watch.claim.text("variable"), watch.claim.text("attribute")
                if name in self._known:
                    watch.example(lambda: self.of_call(call), name in names, call)


def _renewals(frame: Frame, name: Name) -> Bools:
    """Which rows of `Table.changes` clear a value of a variable, or set one from nothing.

    `name` is the kind of the variable and its attribute, as ("torch.nn.Parameter", "grad").
    """
    kinds, kind = frame.kinds
    anew = [code for code, each in enumerate(kinds) if each in _ANEW]
    code = frame.variables.index(name)
    changed = frame.changes["changed"] & (frame.variable_of_change == code)
    return np.asarray(changed & np.isin(kind, anew), bool)
