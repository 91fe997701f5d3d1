"""Consistent: a variable has equal values on two ranks at the end of each step.

Preconditions say for which ranks and variables: those that differ in their data-parallel rank, or
those that differ in their tensor-parallel rank and hold a parameter that is not split.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pytest_trainsafe.judge.learn.columns.frame import Bools, Frame, Records
from pytest_trainsafe.judge.learn.columns.ranks import join, mixed, rank_pairs
from pytest_trainsafe.judge.learn.evidence import Examples
from pytest_trainsafe.judge.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judge.learn.relation import Explanation, Needs, RelationBase
from pytest_trainsafe.judge.learn.watch import Contexts, Watch

_LEAST = 0.01

Name = tuple[str, str]


class Consistent(RelationBase):
    """`variable`.`attribute` is equal on two ranks."""

    name = "consistent"
    several = True
    forms = ({"variable": str, "attribute": str},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Every kind of variable that is sometimes equal on two ranks."""
        for name, _, passed in _pairs(frames, None):
            # Few parameters of a tensor-parallel model are equal, and these matter.
            if passed.mean() >= _LEAST:
                yield hypothesis("consistent", variable=name[0], attribute=name[1])

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """One example for each object, step and pair of ranks."""
        wanted = {(claim.text("variable"), claim.text("attribute")): claim for claim in claims}
        for name, records, passed in _pairs(frames, wanted.keys()):
            found.add(wanted[name], records, passed)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """The value itself."""
        return field == "value"

    def prior(self, claim: Hypothesis) -> int:
        """Replicas are equal by definition."""
        return 2

    def needs(self, claim: Hypothesis) -> Needs:
        """The variable."""
        name = claim.text("variable"), claim.text("attribute")
        return Needs(frozenset(), frozenset({name}))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        """None: it takes the tables of all ranks."""

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        return Explanation(
            f"{claim['attribute']} of {claim['variable']} is equal on the ranks",
            "a reduction is missing, ranks start from other values, or one rank updates alone",
        )


def _pairs(
    frames: Sequence[Frame], wanted: Collection[Name] | None
) -> Iterator[tuple[Name, Records, Bools]]:
    """For each kind of variable and pair of ranks: examples, and whether the values are equal."""
    for one, other in rank_pairs(frames):
        known = {name: code for code, name in enumerate(other.variables)}
        for code, name in enumerate(one.variables):
            if name not in known or (wanted is not None and name not in wanted):
                continue
            rows = one.at_step_ends(code), other.at_step_ends(known[name])
            records = one.change_records(rows[0]), other.change_records(rows[1])
            keys = tuple(
                mixed(
                    frame.text_keys(frame.changes["object"][each]),
                    frame.steps["step"][frame.interval_of_change[each]].astype(np.uint64),
                )
                for frame, each in zip((one, other), rows, strict=True)
            )
            found, at, to = join((one, other), records, (keys[0], keys[1]))
            passed = np.zeros(len(at), bool)
            compared = np.zeros(len(at), bool)
            for kind in ("digest", "value"):
                after = [
                    frame.keys(frame.changes["after"][each][index], kind)
                    for frame, each, index in ((one, rows[0], at), (other, rows[1], to))
                ]
                both = after[0][1] & after[1][1]
                compared |= both
                passed |= both & (after[0][0] == after[1][0])
            if compared.any():
                part = Records(
                    found.rows[compared],
                    found.codes[compared],
                    found.features,
                    frame=one,
                    other=(other, rows[1][to][compared]),
                    of_calls=False,
                )
                yield name, part, passed[compared]
