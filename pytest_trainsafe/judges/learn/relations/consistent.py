"""Consistent: a variable has equal values on two ranks at the end of each step.

A variable is an attribute of a training object, such as the data of a parameter.

A precondition says which ranks and variables are meant.  Two examples: all parameters, on ranks
with different data-parallel ranks; and parameters that are not sharded, on ranks with different
tensor-parallel ranks.  If no recorded feature tells replicas from shards, the form "stays" is
learned: a variable that was equal on two ranks before a step is equal after it.  The form "began"
says so of the first step, for matrices of random numbers only, and where a wrapper reduces the
gradients of a model: experts may begin alike.  The form "reduced" is about replicas that differ
from the start: parameters whose gradients are equal are equal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints, Keys, Records
from pytest_trainsafe.judges.learn.columns.ranks import (
    common_steps,
    join,
    mixed,
    rank_pairs,
    telling,
)
from pytest_trainsafe.judges.learn.events.slips import TEXTS
from pytest_trainsafe.judges.learn.events.table import NONE, ZERO
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import CHOICE, HABIT, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_LEAST = 0.01

#: How exactly the norm of a matrix of ones is that.
_ROUNDING = 1e-5

#: Variables whose values number objects within a process, so that ranks cannot be compared,
#: or who holds a parameter, which ranks that share the work of an optimizer divide.
_PRIVATE = {("optimizer.param_groups", "params"), ("torch.nn.Parameter", "in_optimizer")}

#: What shows that a wrapper reduces gradients.
WRAPPER = "torch.nn.parallel.DistributedDataParallel.forward"

#: The attribute whose equality says that two ranks hold replicas, and that of the replicas.
_GRADIENT, _CONTENT = "grad", "data"

Name = tuple[str, str]


class Consistent(RelationBase):
    """`attribute` of each `variable` is equal on two ranks, or stays equal if it was equal.

    `variable` is a kind of object, such as "torch.nn.Parameter", and `attribute` is, for example,
    "data".
    """

    name = "consistent"
    several = True
    forms = (
        {"variable": str, "attribute": str},
        {"form": ("stays",), "variable": str, "attribute": str},
        {"form": ("began",), "variable": str, "attribute": (_CONTENT,)},
        {"form": ("reduced",), "variable": str, "attribute": (_CONTENT,)},
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes each kind of variable that is sometimes equal on two ranks."""
        for name, _, passed, before, began in _pairs(frames, None):
            # A small share is enough: few parameters of a tensor-parallel model are equal on ranks.
            if passed.mean() >= _LEAST:
                yield _claim(name, stays=False)
            if before.any() and passed[before].mean() >= 0.5:
                yield _claim(name, stays=True)
            if began.any() and passed[began].mean() >= 0.5:
                yield _began(name)
        for name, _, passed in _replicas(frames):
            if passed.mean() >= 0.5:
                yield _reduced(name)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each pair of ranks, each object that both have, and each step."""
        names = {(claim.text("variable"), claim.text("attribute")) for claim in claims}
        wanted = set(claims)
        for name, records, passed, before, began in _pairs(frames, names):
            if (claim := _claim(name, stays=False)) in wanted:
                found.add(claim, records, passed)
            if (claim := _claim(name, stays=True)) in wanted and before.any():
                found.add(claim, records, passed, before)
            if (claim := _began(name)) in wanted and began.any():
                found.add(claim, records, passed, began)
        for name, records, passed in _replicas(frames):
            if (claim := _reduced(name)) in wanted:
                found.add(claim, records, passed)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the value, which would only restate the claim."""
        return field == "value"

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        2 for most claims.  `HABIT` for the claim that weights or optimizer states are equal, and
        `CHOICE` for gradients, because they may be shards.
        """
        if claim["form"] == "began":
            return 1
        if claim["form"] is not None:  # what is reduced or was equal is a replica
            return 2
        if claim["attribute"] == "data" or claim["variable"] == "optimizer.state":
            return HABIT
        return CHOICE if claim["attribute"] == "grad" else 2

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """For a claim that a variable is equal on two ranks, the claim that it stays equal."""
        if claim["form"] is None:
            yield _claim((claim.text("variable"), claim.text("attribute")), stays=True)

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the variable of the claim."""
        names = {(claim.text("variable"), claim.text("attribute"))}
        if claim["form"] == "reduced":
            names.add((claim.text("variable"), _GRADIENT))
        apis = {WRAPPER} if claim["form"] == "began" else set()
        return Needs(frozenset(apis), frozenset(names), frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        """None: the check needs the tables of all ranks."""

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        if claim["form"] == "reduced":
            return Explanation(
                f"each {claim['variable']} whose gradient is equal on two ranks is equal on them",
                "ranks start from other weights, and nothing broadcasts those of one rank",
            )
        if claim["form"] == "began":
            return Explanation(
                "where DistributedDataParallel wraps a model, each matrix of "
                f"{claim['variable']} that begins with the same random numbers on two ranks is "
                "equal on them after a step",
                "a module with weights is outside of the wrapper, such as a loss that learns",
            )
        stays = claim["form"] == "stays"
        return Explanation(
            f"{claim['attribute']} of {claim['variable']} "
            + ("stays equal on ranks that have it in common" if stays else "is equal on the ranks"),
            "a reduction is missing, ranks start from other values, or one rank updates alone",
        )


def _pairs(
    frames: Sequence[Frame], wanted: Collection[Name] | None
) -> Iterator[tuple[Name, Records, Bools, Bools, Bools]]:
    """Yields the records of each kind of variable that two ranks have at the end of the same step.

    `wanted` has the kinds to compare, such as ("torch.nn.Parameter", "data"); None stands for all.
    The masks say which values are equal on the two ranks, which were equal before the step, and
    which are those of the first step that were, are matrices of random numbers, and have changed,
    where a wrapper reduces gradients.
    Left out are those that have no content on both ranks (`columns.ranks.telling`), such as
    gradients that were cleared.
    """
    for one, other in rank_pairs(frames):
        end, _ = common_steps(one, other)
        known = {name: code for code, name in enumerate(other.variables)}
        for code, name in enumerate(one.variables):
            if name not in known or (wanted is not None and name not in wanted):
                continue
            if name in _PRIVATE or name[1] in TEXTS:
                continue
            rows = _until(one, code, end), _until(other, known[name], end)
            records = one.change_records(rows[0]), other.change_records(rows[1])
            keys = _moments(one, rows[0]), _moments(other, rows[1])
            found, at, to = join((one, other), records, keys)
            passed = np.zeros(len(at), bool)
            compared = np.zeros(len(at), bool)
            values = [
                frame.changes["after"][each][index]
                for frame, each, index in ((one, rows[0], at), (other, rows[1], to))
            ]
            told = telling((one, other), (values[0], values[1]))
            for kind in ("digest", "value"):
                after = [
                    frame.keys(its, kind) for frame, its in zip((one, other), values, strict=True)
                ]
                both = after[0][1] & after[1][1] & told
                compared |= both
                passed |= both & (after[0][0] == after[1][0])
            if compared.any():
                part = found.only(compared)
                before = began = np.zeros(len(at), bool)
                if name[1] == _CONTENT:
                    wraps = all(WRAPPER in frame.apis for frame in (one, other))
                    known_before = ((one, rows[0], at), (other, rows[1], to))
                    contents = [_before(frame, each)[index] for frame, each, index in known_before]
                    before = (contents[0] == contents[1]) & (contents[0] != 0)
                    starts = [_before(frame, each, True)[ix] for frame, each, ix in known_before]
                    ends = [
                        frame.keys(each, "digest")[0]
                        for frame, each in zip((one, other), values, strict=True)
                    ]
                    began = (starts[0] == starts[1]) & (starts[0] != 0) & wraps
                    # A rank may own a parameter, and send it to the others after its step.
                    began &= (starts[0] != ends[0]) & (starts[1] != ends[1])
                yield name, part, passed[compared], before[compared], began[compared]


def _replicas(frames: Sequence[Frame]) -> Iterator[tuple[Name, Records, Bools]]:
    """Yields, for each kind of parameter, those with equal gradients at the end of a step.

    Gradients of zeros are equal by chance.  The mask says which parameters are equal too.
    """
    for one, other in rank_pairs(frames):
        end, _ = common_steps(one, other)
        for name in one.variables:
            gradient = name[0], _GRADIENT
            both = {name, gradient}
            if name[1] != _CONTENT or not all(both <= {*each.variables} for each in (one, other)):
                continue
            # At step ends, both attributes are sampled: their rows belong together by the keys.
            rows = [
                [_until(frame, frame.variables.index(each), end) for each in (name, gradient)]
                for frame in (one, other)
            ]
            keys = [
                [_moments(frame, each) for each in own]
                for frame, own in zip((one, other), rows, strict=True)
            ]
            shared = functools.reduce(np.intersect1d, [key for own in keys for key in own])
            at = [
                [
                    each[np.argsort(key)][np.searchsorted(np.sort(key), shared)]
                    for each, key in zip(own, its, strict=True)
                ]
                for own, its in zip(rows, keys, strict=True)
            ]
            values = [
                [frame.changes["after"][each] for each in own]
                for frame, own in zip((one, other), at, strict=True)
            ]
            contents = [
                [frame.keys(each, "digest") for each in own]
                for frame, own in zip((one, other), values, strict=True)
            ]
            known = np.logical_and.reduce([has for own in contents for _, has in own])
            alike = known & (contents[0][1][0] == contents[1][1][0])
            alike &= ~one.bits(values[0][1], ZERO)
            # A rank may own a parameter, and send it to the others after its step: they are late.
            starts = [_start(frame, own[0])[0] for frame, own in zip((one, other), at, strict=True)]
            ends = [its[0][0] for its in contents]
            alike &= (starts[0] != ends[0]) == (starts[1] != ends[1])
            same = (ends[0] == ends[1]) | (ends[0] == starts[1]) | (ends[1] == starts[0])
            if not alike.any():
                continue
            chosen = at[0][0][alike], at[1][0][alike]
            records = one.change_records(chosen[0]), other.change_records(chosen[1])
            moments = shared[alike], shared[alike]
            found, to, _ = join((one, other), records, moments)
            yield name, found, same[alike][to]


def _until(frame: Frame, code: int, end: int) -> Ints:
    """The rows at the ends of steps (`Frame.at_step_ends`) before the step `end`."""
    rows = frame.at_step_ends(code)
    return rows[frame.steps["step"][frame.interval_of_change[rows]] < end]


def _moments(frame: Frame, rows: Ints) -> Keys:
    """A hash of the object and the step of each of these changes."""
    steps = frame.steps["step"][frame.interval_of_change[rows]].astype(np.uint64)
    return mixed(frame.text_keys(frame.changes["object"][rows]), steps)


def _before(frame: Frame, rows: Ints, first: bool = False) -> Keys:
    """The hash of each variable's content at the beginning of a step; 0 if it is not known.

    `rows` are rows of `Table.changes`, each of which gives a variable and a step.  In the first
    step it is 0, since shards may begin equal, with the same seed.  It is 0 for zeros, which shards
    have in common too.  With `first`, it is 0 in all other steps, and for what is no matrix of
    random numbers.
    """
    content, valid, start = _start(frame, rows)
    owed = frame.interval_of_change[rows] == 0
    owed = owed & _drawn(frame, np.where(owed, start, NONE)) if first else ~owed
    return np.where(valid & owed & ~frame.bits(start, ZERO), content, np.uint64(0))


def _start(frame: Frame, rows: Ints) -> tuple[Keys, Bools, Ints]:
    """The hash of each variable's content at the beginning of a step, and whether it is known.

    The third value has the rows of `Table.values` with these contents.
    """
    changes = frame.changes
    changed_first = np.flatnonzero(changes["changed"] & frame.complete)
    # The value before the first change of an object in a step is that at the step's beginning.
    objects = changes["object"].astype(np.int64) * 2**32 + changes["attribute"]
    keys = mixed(objects.astype(np.uint64), frame.interval_of_change.astype(np.uint64))
    wanted, place = np.unique(keys[changed_first], return_index=True)
    start = np.full(len(rows), NONE, np.int64)
    if len(wanted):
        at = np.minimum(np.searchsorted(wanted, keys[rows]), len(wanted) - 1)
        changed = wanted[at] == keys[rows]
        start = np.where(
            changed, changes["before"][changed_first[place[at]]], changes["after"][rows]
        )
    else:
        start = changes["after"][rows]
    content, valid = frame.keys(start, "digest")
    return content, valid, start


def _drawn(frame: Frame, rows: Ints) -> Bools:
    """Which values are matrices with other numbers than ones."""
    found = np.zeros(len(rows), bool)
    for at, row in enumerate(rows.tolist()):
        if row == NONE:
            continue
        sizes = frame.table.texts[int(frame.values["shape"][row])].split("x")
        if len(sizes) > 1 and all(sizes):
            ones = math.prod(int(each) for each in sizes) ** 0.5
            found[at] = abs(float(frame.values["norm"][row]) - ones) > _ROUNDING * ones
    return found


def _began(name: Name) -> Hypothesis:
    return hypothesis("consistent", form="began", variable=name[0], attribute=name[1])


def _reduced(name: Name) -> Hypothesis:
    return hypothesis("consistent", form="reduced", variable=name[0], attribute=name[1])


def _claim(name: Name, stays: bool) -> Hypothesis:
    if stays:
        return hypothesis("consistent", form="stays", variable=name[0], attribute=name[1])
    return hypothesis("consistent", variable=name[0], attribute=name[1])
