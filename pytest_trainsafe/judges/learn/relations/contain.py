"""Contain: every call of an API contains an event.

An event is a call of another API, or a change of state.  An optimizer's step contains updates of
parameters, and `zero_grad` contains the clearing of gradients.  An event counts at any depth of
nesting below the call.  Therefore a check that observes fewer APIs has the same result.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import (
    Checker,
    by_param,
    chain,
    name_of,
    variable_of,
)
from pytest_trainsafe.judges.learn.columns.frame import Bools, CallGroup, Frame, Ints
from pytest_trainsafe.judges.learn.columns.nesting import pairs_by_api
from pytest_trainsafe.judges.learn.columns.setups import holds_kind, trains
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.setup_text import SETUP, optimizers_in
from pytest_trainsafe.judges.learn.events.slips import TEXTS
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.features import kind_of
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant, hypothesis
from pytest_trainsafe.judges.learn.names import is_architecture, is_own_module
from pytest_trainsafe.judges.learn.relation import CHOICE, OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

#: An event: ("call", API, "", "") or ("change", variable, attribute, kind).
Event = tuple[str, str, str, str]

#: Settings of optimizers that stop by themselves, such as LBFGS: a step may then do nothing.
_STOPS = re.compile(r"self\.param_groups\.(\d+\.)?tolerance_")

#: Steps of an optimizer that holds no parameter of a kind do not change one.
_STEP = "torch.optim.*.step"

#: The least share of an API's calls that must contain an event to propose a hypothesis.
_LEAST = 0.02


class Contain(RelationBase):
    """Each call of `api` contains a call of `inner`, or a change of `attribute` of a `variable`.

    `variable` is a kind of object, such as "torch.nn.Parameter", `attribute` for example "grad",
    and `change` the kind of change: "cleared" is a change to None or zeros.
    """

    name = "contain"
    forms = (
        {"api": str, "inner": str},
        {
            "api": str,
            "variable": str,
            "attribute": str,
            "change": ("set", "cleared", "updated", "any"),
        },
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes each API with each call or change that enough of its calls contain."""
        for frame in frames:
            events, pairs = _contained(frame)
            for api, positions, codes in pairs:
                counts = np.bincount(codes, minlength=len(events))
                for code in np.flatnonzero(counts):
                    calls = len(frame.groups[api].rows)
                    if counts[code] >= _LEAST * calls and _sensible(api, events[code]):
                        yield _claim(api, events[code])
                del positions

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each call of the API that could contain the event.

        A change of a kind of parameter, such as `torch.nn.Parameter`, is expected only after a
        parameter of this kind was observed: a program that shards all of its parameters has only
        DTensors.
        """
        wanted: dict[str, list[Hypothesis]] = {}
        for claim in claims:
            wanted.setdefault(claim.text("api"), []).append(claim)
        for frame in frames:
            events, pairs = _contained(frame)
            number = {event: code for code, event in enumerate(events)}
            inside = {api: (positions, codes) for api, positions, codes in pairs}
            for api in sorted(wanted.keys() & frame.groups.keys()):
                group = frame.groups[api]
                nothing = np.zeros(0, np.int64)
                positions, codes = inside.get(api, (nothing, nothing))
                order = np.argsort(codes, kind="stable")
                positions, codes = positions[order], codes[order]
                for claim in wanted[api]:
                    passed = np.zeros(len(group.rows), bool)
                    code = number.get(_event(claim))
                    if code is not None:
                        first, last = np.searchsorted(codes, [code, code + 1])
                        passed[positions[first:last]] = True
                    where = _after_first(frame, claim, group) & ~_stoppable(group)
                    if api == _STEP and _is_of_model(_event(claim)):
                        where &= trains(frame, group, claim.text("variable"))
                    found.add(claim, group, passed, where)

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """For a claim on a change of a certain kind, the claim on a change of any kind."""
        event = _event(claim)
        if event[0] == "change" and event[3] != "any":
            yield _claim(claim.text("api"), (*event[:3], "any"))

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`): 1 for APIs of torch, less for others.

        `OWN` for changes of gradients, which may be cleared twice or be too small to clip, or be
        those of inputs: such a claim is checked only on the programs from which it was learned.
        `CHOICE`, which needs seven programs as evidence, for what depends on the optimizer's class
        (its state), on the schedule (learning rates), on whether a gradient scaler is enabled, or
        on the parallelism (collectives).
        """
        attribute, change = claim["attribute"], claim["change"]
        apis = claim.text("api"), claim.text("inner")
        if attribute == "grad":
            return OWN
        if (
            claim["variable"] in ("optimizer.state", "scaler")
            or attribute == "lr"
            or (attribute, change) == ("data", "set")
            or apis[1].startswith("torch.distributed.")
            or any(api.startswith("torch.amp.GradScaler.") for api in apis)
        ):
            return CHOICE
        return 1 if apis[0].startswith("torch.") else -1

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on "class", which is "Adam" for `torch.optim.Adam.step`.

        For a claim on gradients, also forbids preconditions on `self.has_gradients`.
        """
        return field == "class" or (claim["attribute"] == "grad" and field == "self.has_gradients")

    def redundant(self, found: Sequence[Invariant]) -> Collection[Hypothesis]:
        """The claims that follow from two others by transitivity.

        If each call of API A contains a call of API B, and each call of B contains an event, then
        the claim that each call of A contains the event follows.
        """
        always = {each.claim for each in found if each.precondition.always}
        inner: dict[str, set[str]] = defaultdict(set)
        events: dict[str, set[Event]] = defaultdict(set)
        for claim in always:
            events[claim.text("api")].add(_event(claim))
            if claim["inner"] is not None:
                inner[claim.text("api")].add(claim.text("inner"))
        implied = set()
        for claim in always:
            api, event = claim.text("api"), _event(claim)
            for between in inner[api]:
                # Two APIs that contain each other would make each other redundant.
                if event in events[between] and api not in inner[between] and event[1] != between:
                    implied.add(claim)
        return implied

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the API, and the other API or the variable that the claim names."""
        what, name, attribute, _ = _event(claim)
        if what == "call":
            return Needs(frozenset({claim.text("api"), name}), contents=frozenset())
        apis, variables = frozenset({claim.text("api")}), frozenset({(name, attribute)})
        if claim["api"] == _STEP and attribute == "data":
            variables |= {(name, SETUP)}
        return Needs(apis, variables, contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that collects the calls and changes inside of each call until it returns."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        what, name, attribute, kind = _event(claim)
        api = claim.text("api")
        if what == "call":
            return Explanation(
                f"every call of {api} calls {name}",
                f"an option or a replaced function makes {api} skip {name}",
            )
        verb = {"set": "sets", "cleared": "clears", "updated": "updates"}.get(kind, "changes")
        return Explanation(
            f"every call of {api} {verb} {attribute} of some {name}",
            f"{api} works on other objects than those that are trained, or has nothing to do",
        )


def _is_of_model(event: Event) -> bool:
    """Whether an event is a change of a part of the model, such as a parameter.

    The variable of such a change is named by its type, as in "torch.nn.Parameter".
    """
    return event[0] == "change" and event[1].startswith("torch.")


def _after_first(frame: Frame, claim: Hypothesis, group: CallGroup) -> Bools:
    """The calls of `group` that a claim is judged on.

    If the claim is on a change of a part of a model, such as a parameter, these are the calls that
    returned after such a part was first observed.  Otherwise they are all calls.
    """
    _, name, attribute, _ = event = _event(claim)
    if not _is_of_model(event):
        return np.ones(len(group.rows), bool)
    if (name, attribute) not in frame.variables:
        return np.zeros(len(group.rows), bool)
    code = frame.variables.index((name, attribute))
    first = frame.changes["position"][frame.variable_of_change == code].min()
    return np.asarray(frame.calls["exit"][group.rows] > first, bool)


def _stoppable(group: CallGroup) -> Bools:
    """The calls of `group` that may do nothing: steps of an optimizer that stops by itself."""
    found = np.zeros(len(group.rows), bool)
    for place, slot in group.slots.items():
        if _STOPS.search(place):
            found |= slot != NONE
    return found


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._watches = by_param(watches, "api")
        self._events = {_event(watch.claim) for watch in watches}
        self._variables = {event[1:3] for event in self._events if event[0] == "change"}
        self._open: dict[int, set[Event]] = {}
        #: The kinds of variables that were observed so far.
        self._known: set[tuple[str, str]] = set()
        #: The optimizers that hold a parameter of each kind.
        self._holders: dict[str, set[str]] = defaultdict(set)

    def reads_calls(self, api: str) -> bool:
        return api in self._watches or ("call", api, "", "") in self._events

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return variable in self._variables or variable[1] == SETUP

    def entered(self, call: Call) -> None:
        api = name_of(call)
        self._happened(call.parent, ("call", api, "", ""))
        if api in self._watches:
            self._open[id(call)] = set()

    def changed(self, change: Change) -> None:
        name, attribute = variable_of(change)
        if attribute == SETUP:
            self._holders[name].update(optimizers_in(str(change.after.plain)))
            return
        self._known.add((name, attribute))
        if change.changed:
            self._happened(change.by, ("change", name, attribute, kind_of(change)))
            self._happened(change.by, ("change", name, attribute, "any"))

    def left(self, call: Call) -> None:
        events = self._open.pop(id(call), None)
        if events is not None and not call.exception and not any(map(_STOPS.match, call.values)):
            api = name_of(call)
            called = call.values.get("self.name")
            for watch in self._watches[api]:
                event = _event(watch.claim)
                owner = str(called.plain) if api == _STEP and called is not None else ""
                if _is_of_model(event) and not holds_kind(owner, event[1], self._holders):
                    continue
                if not _is_of_model(event) or event[1:3] in self._known:
                    watch.example(lambda: self.of_call(call), event in events, call)

    def _happened(self, call: Call | None, event: Event) -> None:
        if event in self._events and self._open:
            for outer in chain(call):
                if id(outer) in self._open:
                    self._open[id(outer)].add(event)


def _contained(frame: Frame) -> tuple[list[Event], list[tuple[str, Ints, Ints]]]:
    """The kinds of events of a table, and which calls contain which of them.

    The second list has a triple for each API: its name, positions of calls in `frame.groups[api]`,
    and indices in the list of events.  The call at `positions[i]` contains the event with the index
    `codes[i]`.
    """
    events: list[Event] = [("call", api, "", "") for api in frame.apis]
    calls, changes = frame.calls, frame.changes
    kinds, kind = frame.kinds
    first = len(events)
    for name, attribute in frame.variables:
        events += [("change", name, attribute, each) for each in (*kinds, "any")]
    changed = changes["changed"]
    base = first + frame.variable_of_change * (len(kinds) + 1)
    start = np.concatenate([calls["parent"], changes["by"], changes["by"]])
    code = np.concatenate(
        [
            frame.api,
            np.where(changed, base + kind, NONE),
            np.where(changed, base + len(kinds), NONE),
        ]
    )
    return events, list(pairs_by_api(frame, start, code, len(events)))


def _sensible(api: str, event: Event) -> bool:
    """Whether "calls of `api` contain `event`" could be a rule of training."""
    what, name, attribute, kind = event
    # Constructors are details of a release, and modules of programs differ too much.
    if api.endswith(".__init__") or is_own_module(api):
        return False
    if what == "call":
        # Which layers a model calls is no rule of training.
        return name != api and not is_architecture(name)
    if api.endswith(".load_state_dict"):
        return False  # it changes nothing if the state is what is there, as that of the best step
    # Private attributes are details of a release.
    return kind != "other" and attribute not in TEXTS and not attribute.startswith("_")


def _claim(api: str, event: Event) -> Hypothesis:
    what, name, attribute, kind = event
    if what == "call":
        return hypothesis("contain", api=api, inner=name)
    return hypothesis("contain", api=api, variable=name, attribute=attribute, change=kind)


def _event(claim: Hypothesis) -> Event:
    if claim["inner"] is not None:
        return "call", claim.text("inner"), "", ""
    return "change", claim.text("variable"), claim.text("attribute"), claim.text("change")
