"""Membership: what is trained is what the optimizer holds.

A claim has one of four forms.  "held": each parameter of the model is in a group of the optimizer.
"known": each parameter in the optimizer has a gradient or belongs to the model; if a model is
wrapped, flattened or copied after the optimizer was created, the optimizer keeps parameters that
nothing trains.  "trainable": each parameter in the optimizer requires gradients.  "graded": each of
those that require a gradient has one when the optimizer steps, unless none has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, name_of, variable_of
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import (
    CHOICE,
    OWN,
    Explanation,
    Needs,
    RelationBase,
)
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_STEP = "torch.optim.*.step"
_HELD = "torch.nn.Parameter", "in_optimizer"
#: The count, recorded with an optimizer's step, that must be 0 for each form of claim.
_COUNTS = {"known": "self.stale", "trainable": "self.frozen", "graded": "self.ungraded"}
#: Whether there are gradients at all: without them, a step says nothing on single parameters.
_SOME = "self.has_gradients"


class Membership(RelationBase):
    """The optimizer has all parameters of the model, no others, or only trainable ones.

    `form` is "held", "known" or "trainable" for these claims, and "graded" for the claim that all
    parameters that the optimizer holds and that require gradients have one.
    """

    name = "membership"
    forms = ({"form": ("held", *_COUNTS)},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes all claims, if optimizer steps and model parameters were observed."""
        if any(_STEP in frame.groups and _HELD in frame.variables for frame in frames):
            for form in ("held", *_COUNTS):
                yield hypothesis("membership", form=form)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds the examples of each claim, which depend on the form of the claim.

        A claim of the form "held" has an example for each parameter at the end of each step.  A
        claim of another form has an example for each step of an optimizer.
        """
        for frame in frames:
            for claim in claims:
                if claim["form"] == "held":
                    self._held(frame, claim, found)
                elif _STEP in frame.groups:
                    group = frame.groups[_STEP]
                    slot = group.slots.get(_COUNTS[claim.text("form")])
                    if slot is not None:
                        numbers, valid = frame.numbers(slot, "value")
                        if claim["form"] == "graded":
                            some = group.slots.get(_SOME)
                            if some is None:
                                continue
                            has = frame.values["number"][np.maximum(some, 0)] == 1
                            valid &= has & (some != NONE)
                        found.add(claim, group, (numbers == 0) & valid, valid)

    def _held(self, frame: Frame, claim: Hypothesis, found: Examples) -> None:
        if _HELD not in frame.variables:
            return
        rows = frame.at_step_ends(frame.variables.index(_HELD))
        passed = frame.values["number"][frame.changes["after"][rows]] == 1
        found.add(claim, frame.change_records(rows), np.asarray(passed, bool))

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        `OWN` for the claim that the optimizer has all parameters of the model ("held"), because
        fine-tuning trains only a part of a model: the claim is checked only on the programs from
        which it was learned.  1, the neutral number, for "known", and 0 for "trainable".  `CHOICE`,
        which needs seven programs, for "graded": experts and heads may rest in a step.
        """
        return {"held": OWN, "known": 1, "trainable": 0, "graded": CHOICE}[claim.text("form")]

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on what the claim says, and on whether a step changes anything."""
        return field in ("value", "self.has_gradients", "self.zero_rate")

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the parameters, and the optimizer's steps."""
        return Needs(frozenset({_STEP}), frozenset({_HELD}), contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each optimizer step, and each parameter at a step's end."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        causes = "the optimizer was made before the model was wrapped, moved or changed"
        if claim["form"] == "held":
            return Explanation("every parameter of the model is in the optimizer", causes)
        if claim["form"] == "known":
            return Explanation("the optimizer holds parameters of the model only", causes)
        if claim["form"] == "graded":
            return Explanation(
                "every parameter that the optimizer holds and that requires a gradient has one",
                "a part of the model is not in the graph of the loss: its forward runs without "
                "gradients, its result is detached, or it is not used",
            )
        return Explanation(
            "every parameter that the optimizer holds requires gradients",
            "layers were frozen by mistake, or after the optimizer was made",
        )


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._held = [watch for watch in watches if watch.claim["form"] == "held"]
        self._steps = [watch for watch in watches if watch.claim["form"] != "held"]
        self._parameters: dict[str, Change] = {}

    def reads_calls(self, api: str) -> bool:
        return api == _STEP

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return variable == _HELD

    def left(self, call: Call) -> None:
        if call.exception or name_of(call) != _STEP:
            return
        for watch in self._steps:
            value = call.values.get(_COUNTS[watch.claim.text("form")])
            some = call.values.get(_SOME)
            if watch.claim["form"] == "graded" and (some is None or some.plain is not True):
                continue
            if value is not None and isinstance(value.plain, int):
                watch.example(lambda: self.of_call(call), value.plain == 0, call)

    def changed(self, change: Change) -> None:
        if variable_of(change) == _HELD:
            self._parameters[change.object] = change

    def step_ended(self, step: int) -> None:
        for watch in self._held:
            for change in self._parameters.values():
                self._judge(watch, change)
        self._parameters = {}

    def _judge(self, watch: Watch, change: Change) -> None:
        watch.example(lambda: self.of_change(change), change.after.plain is True, change)
