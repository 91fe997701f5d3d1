"""Within: a kind of variable changes only inside calls of an API.

Parameters change inside the optimizer's step; a change elsewhere is a fault of the loop, of a
hook or of a module that writes to its parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import (
    Checker,
    by_variable,
    chain,
    name_of,
    variable_of,
)
from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints
from pytest_trainsafe.judges.learn.columns.nesting import ancestors
from pytest_trainsafe.judges.learn.events.events import Change
from pytest_trainsafe.judges.learn.events.slips import TEXTS
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch


class Within(RelationBase):
    """`attribute` of each `variable` changes only inside calls of `api`.

    `variable` is a kind of object, such as "torch.nn.Parameter", and `attribute` is, for example,
    "data".
    """

    name = "within"
    forms = ({"api": str, "variable": str, "attribute": str},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes each kind of variable with each API whose calls make some of its changes."""
        for frame in frames:
            for (name, attribute), rows in _changes(frame):
                apis = set()
                for _, calls in ancestors(frame, frame.changes["by"][rows]):
                    apis |= set(np.unique(frame.api[calls]).tolist())
                for code in sorted(apis - {NONE}):
                    yield hypothesis(
                        "within", api=frame.apis[code], variable=name, attribute=attribute
                    )

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each change of the variable."""
        wanted: dict[tuple[str, str], list[Hypothesis]] = {}
        for claim in claims:
            wanted.setdefault((claim.text("variable"), claim.text("attribute")), []).append(claim)
        for frame in frames:
            for name, rows in _changes(frame):
                if name not in wanted:
                    continue
                records = frame.change_records(rows)
                inside: dict[str, Bools] = {}
                for index, calls in ancestors(frame, frame.changes["by"][rows]):
                    apis = frame.api[calls]
                    for code in np.unique(apis[apis != NONE]):
                        marks = inside.setdefault(frame.apis[code], np.zeros(len(rows), bool))
                        marks[index[apis == code]] = True
                for claim in wanted[name]:
                    nowhere = np.zeros(len(rows), bool)
                    found.add(claim, records, inside.get(claim.text("api"), nowhere))

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        `OWN` for every claim, because correct programs may copy weights in other code: a claim is
        checked only on the programs from which it was learned.
        """
        return OWN

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the phase, which only restates where a change happens."""
        return field == "phase"

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the API and the variable of the claim."""
        name = claim.text("variable"), claim.text("attribute")
        return Needs(frozenset({claim.text("api")}), frozenset({name}), contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that looks at the calls around each change."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        api, name = claim.text("api"), claim.text("variable")
        return Explanation(
            f"{claim.text('attribute')} of {name} changes only inside calls of {api}",
            f"code outside of {api} writes to it, for example a repeated initialisation",
        )


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._watches = by_variable(watches)

    def reads_calls(self, api: str) -> bool:
        return False

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return variable in self._watches

    def changed(self, change: Change) -> None:
        known = change.changed and change.before is not None
        watches = self._watches.get(variable_of(change), ()) if known else ()
        if watches:
            apis = {name_of(call) for call in chain(change.by)}
            for watch in watches:
                inside = watch.claim.text("api") in apis
                watch.example(lambda: self.of_change(change), inside, change)


def _changes(frame: Frame) -> Iterable[tuple[tuple[str, str], Ints]]:
    """Yields each kind of variable, as ("torch.nn.Parameter", "data"), with rows of its changes.

    Left out are the samples of unchanged values at the ends of steps, and the changes by which a
    variable gets its first value.
    """
    changed = frame.changes["changed"] & (frame.changes["before"] != NONE)
    codes = frame.variable_of_change
    for code, name in enumerate(frame.variables):
        if name[1] in TEXTS:
            continue
        rows = np.flatnonzero(changed & (codes == code))
        if len(rows):
            yield name, rows
