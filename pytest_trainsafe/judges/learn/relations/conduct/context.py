"""Context: the backward and the optimizer's step are outside of autocast.

Autocast is for the forward and the loss.  A region around the whole loop also keeps its casts of
the weights, so that later forwards use those of an earlier step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import CallChecker, Checker, name_of
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.events import Call
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.relations.by_api import by_api
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_APIS = ("torch.optim.*.step", "torch.autograd.backward", "torch.amp.GradScaler.step")


class Context(RelationBase):
    """Calls of `api` are outside of every autocast region."""

    name = "context"
    forms = ({"api": _APIS, "autocast": ("off",)},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes the claim for each of the APIs that is called."""
        for api in _APIS:
            if any(api in frame.groups for frame in frames):
                yield hypothesis("context", api=api, autocast="off")

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each call."""
        for frame in frames:
            off = np.array([meta.get("autocast") is None for meta in frame.table.metas], bool)
            for group, claim in by_api(claims, frame.groups):
                found.add(claim, group, off[frame.calls["meta"][group.rows]])

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on autocast, which restate the claim, and on arguments."""
        return field in ("autocast", "class") or field.partition(".")[0] in ("arg", "self")

    def anywhere(self, claim: Hypothesis) -> bool:
        """True: the claim holds in every context."""
        return True

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the API of the claim."""
        return Needs(frozenset({claim.text("api")}), contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each call."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        return Explanation(
            f"{claim['api']} is called outside of autocast",
            "the autocast region is around more than the forward and the loss",
        )


class _Checker(CallChecker):
    def left(self, call: Call) -> None:
        if call.exception:
            return
        autocast = call.meta.get("autocast")
        for watch in self.watches.get(name_of(call), ()):
            detail = "" if autocast is None else f"autocast to {autocast}"
            watch.example(lambda: self.of_call(call), autocast is None, call, detail)
