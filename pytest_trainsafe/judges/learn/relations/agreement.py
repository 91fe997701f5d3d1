"""Agreement: the ranks of a group call an API with equal, or with different, arguments.

Calls are matched by step and by their number within the step.  A claim has one of four forms.
"equal": a property (a value, or the dtype, shape or content of a tensor) of an argument or a result
is equal on the ranks.  "different": the property differs, as the batches of data-parallel ranks do.
"collective": the dtype or shape of an argument is equal on the ranks, for an API that is given a
process group.  "calls": the ranks call an API that is given a process group equally often in each
step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Keys, Records
from pytest_trainsafe.judges.learn.columns.ranks import (
    common_steps,
    coordinates,
    join,
    mixed,
    rank_pairs,
    telling,
)
from pytest_trainsafe.judges.learn.conditions import Feature, joined
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import (
    OWN,
    Explanation,
    Needs,
    RelationBase,
    contents_of,
)
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_PROPERTIES = ("value", "dtype", "shape", "digest")
#: Those of them that say nothing if a value has no content (`columns.ranks.telling`).
_CONTENTS = ("value", "digest")
_FORMS = ("equal", "collective", "different")
_LEAST = 0.05

#: How loaders give batches, and where the first tensor of a batch is.
_NEXT, _BATCH = "torch.utils.data.DataLoader.__next__", ("result", "result.0")

#: How many parameters have no gradient in a step of an optimizer.
_UNGRADED = "self.ungraded"

#: The type of the argument that marks an API as communication.
_GROUP = "torch.distributed.ProcessGroup"
#: Names of communication that the ranks of a group do not all call alike, such as send and recv.
_PAIRED = re.compile(r"send|recv|new_group|gather_object|scatter_object|monitored")


class Agreement(RelationBase):
    """An argument or a result of `api` is equal, or differs, between ranks.

    `place` names the argument or result, such as "arg.input", and `property` what is compared of
    it, such as "shape".  If `form` is "calls", the ranks call `api` equally often.
    """

    name = "agreement"
    several = True
    forms = (
        {"form": _FORMS, "api": str, "place": str, "property": _PROPERTIES},
        {"form": ("calls",), "api": str},
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes each claim that at least `_LEAST` of the calls, or of the steps, satisfy."""
        collectives = _collectives(frames)
        for api, _, place, name, equal in _pairs(frames, None):
            if equal.mean() >= _LEAST:
                shared = name in ("shape", "dtype") and place.startswith("arg.")
                form = "collective" if shared and api in collectives else "equal"
                yield _claim(form, api, place, name)
            if 1 - equal.mean() >= _LEAST and name in ("digest", "value"):
                yield _claim("different", api, place, name)
        for api, _, equal in _counted(frames, collectives):
            if equal.mean() >= _LEAST:
                yield hypothesis("agreement", form="calls", api=api)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each pair of matching calls on two ranks.

        For a claim of the form "calls", which compares numbers of calls, adds one for each step.
        """
        wanted: dict[tuple[str, str, str], list[Hypothesis]] = defaultdict(list)
        for claim in claims:
            wanted[claim.text("api"), claim.text("place"), claim.text("property")].append(claim)
        apis = {claim.text("api") for claim in claims}
        counted = {claim.text("api"): claim for claim in claims if claim["form"] == "calls"}
        for api, of_calls, equal in _counted(frames, counted.keys()):
            found.add(counted[api], of_calls, equal)
        for api, records, place, name, equal in _pairs(frames, apis):
            for claim in wanted.get((api, place, name), ()):
                found.add(claim, records, ~equal if claim["form"] == "different" else equal)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the argument of the claim."""
        return field == claim["place"] or field.startswith(f"{claim.text('place')}.")

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Whether one claim calls values equal and the other calls them different."""
        same = all(claim[name] == other[name] for name in ("api", "place", "property"))
        forms = {claim["form"], other["form"]}
        return same and len(forms) == 2 and "different" in forms

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        2 for the form "collective" (an API with a process group is given equal dtypes or shapes).
        1 for the form "calls" (an API with a process group is called equally often).  `OWN` for
        "equal" and "different": such a claim is checked only on the programs from which it was
        learned.  1 for the claims that the ranks get different batches from their loaders, and that
        equally many parameters lack a gradient when they step.
        """
        if claim["form"] == "different" and claim["api"] == _NEXT:
            return 1 if claim["property"] == "digest" and claim["place"] in _BATCH else OWN
        if claim["form"] == "equal" and claim["place"] == _UNGRADED:
            return 1
        return {"collective": 2, "calls": 1}.get(claim.text("form"), OWN)

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the API of the claim."""
        return Needs(frozenset({claim.text("api")}), contents=contents_of(claim))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        """None: the check needs the tables of all ranks."""

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        if claim["form"] == "calls":
            return Explanation(
                f"the ranks call {claim['api']} equally often in each step",
                "one rank takes another branch, and the others wait for it",
            )
        name = "content" if claim["property"] == "digest" else claim["property"]
        what = f"the {name} of {claim['place']} of {claim['api']}"
        if claim["form"] != "different":
            return Explanation(f"{what} is equal on the ranks", "one rank does other work")
        return Explanation(
            f"{what} differs between the ranks", "the ranks use the same data or the same seed"
        )


def _pairs(
    frames: Sequence[Frame], wanted: Collection[str] | None
) -> Iterator[tuple[str, Records, str, str, Bools]]:
    """Yields the pairs of matching calls of two ranks, and whether their values are equal.

    Each tuple is for one API, one place (an argument or a result) and one property, such as
    "shape".  `wanted` has the APIs to compare; None stands for all.
    """
    for one, other in rank_pairs(frames):
        end, _ = common_steps(one, other)
        apis = one.groups.keys() & other.groups.keys()
        for api in sorted(apis if wanted is None else apis & set(wanted)):
            groups = one.groups[api], other.groups[api]
            keys = _moments(one, groups[0]), _moments(other, groups[1])
            found, at, to = join((one, other), groups, keys)
            same = one.steps_of(one.calls["meta"][groups[0].rows[at]]) < end
            if not same.any():
                continue
            for place in sorted(groups[0].slots.keys() & groups[1].slots.keys()):
                values = groups[0].slots[place][at], groups[1].slots[place][to]
                told = telling((one, other), values)
                for name in _PROPERTIES:
                    mine, has = one.keys(values[0], name)
                    its, too = other.keys(values[1], name)
                    both = has & too & same
                    if name in _CONTENTS:
                        both &= told
                    if both.any():
                        yield api, found.only(both), place, name, (mine == its)[both]


def _collectives(frames: Sequence[Frame]) -> set[str]:
    """The APIs with a process group among their arguments, as all_reduce has.

    Left out are APIs that the ranks of a group do not all call in the same way, such as send.
    """
    found = set()
    for frame in frames:
        groups = {code for code, text in enumerate(frame.table.texts) if text == _GROUP}
        for api, group in frame.groups.items():
            if not _PAIRED.search(api.rpartition(".")[2]):
                types = (frame.values["type"][slot[slot != NONE]] for slot in group.slots.values())
                if any(np.isin(each, list(groups)).any() for each in types):
                    found.add(api)
    return found


def _counted(
    frames: Sequence[Frame], apis: Collection[str]
) -> Iterator[tuple[str, Records, Bools]]:
    """Yields calls of each API, one for each step, and whether two ranks call it equally often.

    Each pair of ranks from `rank_pairs` is compared.  The call for a step is the first rank's last
    call of the API in the step, or the second rank's if the first rank has none.  A step is
    compared if at least one of the two ranks ended it, since the other rank may hang in it, and if
    it is the same step on both (`common_steps`).
    """
    for pair in rank_pairs(frames):
        ended = np.union1d(*(frame.steps["step"] for frame in pair))
        end, waits = common_steps(*pair)
        ended = ended[ended < end + waits]
        places = [dict[str, Feature](coordinates(frame)) for frame in pair]
        features = [joined(places[0], places[1])]
        for api in sorted(apis):
            last: list[dict[int, int]] = []
            count: list[dict[int, int]] = []
            for frame in pair:
                rows = frame.entries(frame.apis.index(api)) if api in frame.apis else _NO_ROWS
                steps = frame.steps_of(frame.calls["meta"][rows])
                rows, steps = rows[np.isin(steps, ended)], steps[np.isin(steps, ended)]
                last.append(dict(zip(steps.tolist(), rows.tolist(), strict=True)))
                found, counts = np.unique(steps, return_counts=True)
                count.append(dict(zip(found.tolist(), counts.tolist(), strict=True)))
            for at, frame in enumerate(pair):
                mine, its = count[at], count[1 - at]
                chosen = [step for step in sorted(mine) if at == 0 or step not in its]
                if chosen:
                    rows = np.array([last[at][step] for step in chosen], np.int64)
                    codes = np.zeros(len(rows), np.int64)
                    equal = np.array([mine[step] == its.get(step) for step in chosen], bool)
                    yield api, Records(rows, codes, features, frame=frame), equal


_NO_ROWS = np.zeros(0, np.int64)


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
