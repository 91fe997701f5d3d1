"""Agreement: the ranks of a group call an API with equal, or with different, arguments.

Calls are matched by step and by their number within the step.  The arguments of a collective
agree; the batches of data-parallel ranks differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pytest_trainsafe.judge.learn.columns.frame import Bools, Frame, Keys, Records
from pytest_trainsafe.judge.learn.columns.ranks import join, mixed, rank_pairs
from pytest_trainsafe.judge.learn.evidence import Examples
from pytest_trainsafe.judge.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judge.learn.relation import Explanation, Needs, RelationBase
from pytest_trainsafe.judge.learn.watch import Contexts, Watch

_PROPERTIES = ("value", "dtype", "shape", "digest")
_LEAST = 0.05


class Agreement(RelationBase):
    """`property` of `place` in calls of `api` is equal, or differs, between ranks."""

    name = "agreement"
    several = True
    forms = ({"form": ("equal", "different"), "api": str, "place": str, "property": _PROPERTIES},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Every value that is sometimes equal, and every content that sometimes differs."""
        for api, _, place, name, equal in _pairs(frames, None):
            if equal.mean() >= _LEAST:
                yield _claim("equal", api, place, name)
            if 1 - equal.mean() >= _LEAST and name in ("digest", "value"):
                yield _claim("different", api, place, name)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """One example for each matched call of a pair of ranks."""
        wanted: dict[tuple[str, str, str], list[Hypothesis]] = defaultdict(list)
        for claim in claims:
            wanted[claim.text("api"), claim.text("place"), claim.text("property")].append(claim)
        apis = {claim.text("api") for claim in claims}
        for api, records, place, name, equal in _pairs(frames, apis):
            for claim in wanted.get((api, place, name), ()):
                found.add(claim, records, equal if claim["form"] == "equal" else ~equal)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """The features of the same argument."""
        return field == claim["place"] or field.startswith(f"{claim.text('place')}.")

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Values cannot be equal and different."""
        same = all(claim[name] == other[name] for name in ("api", "place", "property"))
        return same and claim["form"] != other["form"]

    def needs(self, claim: Hypothesis) -> Needs:
        """The API."""
        return Needs(frozenset({claim.text("api")}))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        """None: it takes the tables of all ranks."""

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        name = "content" if claim["property"] == "digest" else claim["property"]
        what = f"the {name} of {claim['place']} of {claim['api']}"
        if claim["form"] == "equal":
            return Explanation(f"{what} is equal on the ranks", "one rank does other work")
        return Explanation(
            f"{what} differs between the ranks", "the ranks use the same data or the same seed"
        )


def _pairs(
    frames: Sequence[Frame], wanted: Collection[str] | None
) -> Iterator[tuple[str, Records, str, str, Bools]]:
    """For each API, place and property: examples, and whether the values are equal."""
    for one, other in rank_pairs(frames):
        apis = one.groups.keys() & other.groups.keys()
        for api in sorted(apis if wanted is None else apis & set(wanted)):
            groups = one.groups[api], other.groups[api]
            keys = _moments(one, groups[0]), _moments(other, groups[1])
            found, at, to = join((one, other), groups, keys)
            if not len(at):
                continue
            for place in sorted(groups[0].slots.keys() & groups[1].slots.keys()):
                for name in _PROPERTIES:
                    mine, has = one.keys(groups[0].slots[place][at], name)
                    its, too = other.keys(groups[1].slots[place][to], name)
                    both = has & too
                    if both.any():
                        part = Records(
                            found.rows[both],
                            found.codes[both],
                            found.features,
                            frame=one,
                            other=(other, groups[1].rows[to][both]),
                        )
                        yield api, part, place, name, (mine == its)[both]


def _moments(frame: Frame, group: Records) -> Keys:
    """A key for each call: its step, and its number among the calls of the API in that step."""
    steps = frame.steps_of(frame.calls["meta"][group.rows])
    order = np.argsort(steps, kind="stable")
    first = np.searchsorted(steps[order], steps[order])
    number = np.empty(len(steps), np.int64)
    number[order] = np.arange(len(steps)) - first
    return mixed(steps.astype(np.uint64), number.astype(np.uint64))


def _claim(form: str, api: str, place: str, name: str) -> Hypothesis:
    return hypothesis("agreement", form=form, api=api, place=place, property=name)
