"""Mode: a model runs in training mode before an optimizer steps.

A validation that leaves a model in evaluation mode turns dropout and batch statistics off for the
steps that follow.  Which modules are in the other mode is a matter of each program; see `setup`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, name_of
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.events import Call
from pytest_trainsafe.judges.learn.events.mode_text import trains
from pytest_trainsafe.judges.learn.events.table import NONE, value_at
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_STEP = "torch.optim.*.step"
_MODES = "self.modes"


class Mode(RelationBase):
    """Some model that ran with gradients before a step of an optimizer was in training mode."""

    name = "mode"
    forms = ({"api": (_STEP,)},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes the claim if the modes before steps of optimizers were observed."""
        if any(_STEP in frame.groups and _MODES in frame.groups[_STEP].slots for frame in frames):
            yield hypothesis("mode", api=_STEP)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each step of an optimizer before which a model ran."""
        for frame in frames:
            group = frame.groups.get(_STEP)
            if group is None or _MODES not in group.slots:
                continue
            slot = group.slots[_MODES]
            texts = ["" if row == NONE else value_at(frame.table, int(row)).plain for row in slot]
            passed = list(map(trains, texts))
            where = np.array([each is not None for each in passed], bool)
            for claim in claims:
                found.add(claim, group, np.array([each is True for each in passed], bool), where)

    def prior(self, claim: Hypothesis) -> int:
        """1, the neutral number: few programs fine-tune in evaluation mode, and those of a project
        that do are counterexamples.
        """
        return 1

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the step's object and arguments, which decide no mode."""
        return field == "class" or field.partition(".")[0] in ("arg", "self")

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the steps; the observer notes the modes of the models before them."""
        return Needs(frozenset({_STEP}), contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each step of an optimizer before which a model ran."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        return Explanation(
            f"before each call of {_STEP}, a model runs in training mode",
            "a validation called eval(), or the model was loaded in evaluation mode, as by "
            "from_pretrained, and nothing called train() after it",
        )


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._watches = watches

    def reads_calls(self, api: str) -> bool:
        return api == _STEP

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return False

    def left(self, call: Call) -> None:
        modes = call.values.get(_MODES)
        if modes is None or call.exception or name_of(call) != _STEP:
            return
        passed = trains(modes.plain)
        for watch in self._watches if passed is not None else ():
            watch.example(
                lambda: self.of_call(call), passed is True, call, f"the modes are: {modes.plain}"
            )
