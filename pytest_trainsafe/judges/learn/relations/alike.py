"""Alike: what ranks train with is equal on the ranks of an axis, or differs between them.

The observer records texts for each step (`instrument/slips/steps/shared.py`): a hash of the batch,
the factor by which the gradients were scaled between the last backward or collective and the step,
and a hash of the model's buffers, of which one more is from before the first forward.
Ranks on which a wrapper of torch replicates a model, or shards it, get different batches: others
may share one, as where each has some experts.  All scale their gradients by one factor, as by that
of the norm of all gradients.  Buffers that are equal before the first forward stay equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints, Keys, Records
from pytest_trainsafe.judges.learn.columns.ranks import (
    common_steps,
    coordinates,
    join,
    mixed,
    rank_pairs,
)
from pytest_trainsafe.judges.learn.events.slips import BATCH, BUFFERS, SCALING, TRAINING
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.relations.conduct.recorded import texts_of
from pytest_trainsafe.judges.learn.relations.consistent import WRAPPER
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

#: How exactly factors are equal: the norms that they follow from are rounded.
_EQUAL = 0.01
_LEAST = 0.5
#: What shows that `fully_shard` has sharded a model.
_SHARD = ("torch.distributed.tensor.DTensor", "data")


class Alike(RelationBase):
    """`attribute` of the training is equal on neighbours along `axis`, or differs between them."""

    name = "alike"
    several = True
    forms = (
        {"form": ("equal",), "attribute": (SCALING, BUFFERS), "axis": str},
        {"form": ("different",), "attribute": (BATCH,), "axis": str},
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes what half of the steps show, for each axis."""
        for attribute in (BATCH, SCALING, BUFFERS):
            for axis, _, equal in _pairs(frames, attribute):
                form = "different" if attribute == BATCH else "equal"
                if (equal if form == "equal" else ~equal).mean() >= _LEAST:
                    yield hypothesis("alike", form=form, attribute=attribute, axis=axis)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each pair of ranks and each step in which both have a text."""
        for attribute in sorted({claim.text("attribute") for claim in claims}):
            for axis, records, equal in _pairs(frames, attribute):
                for claim in claims:
                    if claim["attribute"] == attribute and claim["axis"] == axis:
                        found.add(claim, records, equal if claim["form"] == "equal" else ~equal)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids all preconditions: the claim names the ranks that it is about."""
        return True

    def anywhere(self, claim: Hypothesis) -> bool:
        """True: the claim holds in every context."""
        return True

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the texts, and for batches what shows that a model is wrapped."""
        names = {(TRAINING, claim.text("attribute"))}
        if claim["attribute"] != BATCH:
            return Needs(variables=frozenset(names), contents=frozenset())
        return Needs(frozenset({WRAPPER}), frozenset({*names, _SHARD}), frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        """None: the check needs the tables of all ranks."""

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        axis = claim.text("axis")
        if claim["attribute"] == SCALING:
            return Explanation(
                f"the gradients of a step are scaled by one factor on the ranks of {axis}",
                "each rank clips by the norm of its own gradients, and not by that of all",
            )
        if claim["attribute"] == BUFFERS:
            return Explanation(
                f"the buffers of a model that begin equal on the ranks of {axis} stay equal",
                "each rank updates statistics by its own batches, and nothing reduces them",
            )
        return Explanation(
            f"the ranks of {axis} train a model that is replicated or sharded with different "
            "batches",
            "the ranks read the same data: the sampler, the stream or the seed lacks the rank",
        )


def _pairs(frames: Sequence[Frame], attribute: str) -> Iterator[tuple[str, Records, Bools]]:
    """Yields the axis of two neighbours, and in which of their steps the texts are equal."""
    for one, other in rank_pairs(frames):
        places = coordinates(one), coordinates(other)
        if attribute == BATCH and not all(_is_wrapped(frame) for frame in (one, other)):
            continue
        axes = [name for name in places[0] if places[0][name] != places[1].get(name)]
        if len(axes) != 1:
            continue
        end, _ = common_steps(one, other)
        rows, texts = zip(*(_texts(frame, attribute, end) for frame in (one, other)), strict=True)
        if not len(rows[0]) or not len(rows[1]):
            continue
        keys = _moments(one, rows[0]), _moments(other, rows[1])
        records = one.change_records(rows[0]), other.change_records(rows[1])
        found, at, to = join((one, other), records, keys)
        pairs = [(texts[0][mine], texts[1][its]) for mine, its in zip(at, to, strict=True)]
        equal = np.array([_equal(attribute, *pair) for pair in pairs], bool)
        kept = np.ones(len(pairs), bool)
        if attribute == BUFFERS and len(pairs):
            first = int(np.argmin(at))
            kept[first] = False
            kept &= equal[first]
        if kept.any():
            yield axes[0].removesuffix("_rank"), found.only(kept), equal[kept]


def _is_wrapped(frame: Frame) -> bool:
    return WRAPPER in frame.apis or _SHARD in frame.variables


def _texts(frame: Frame, attribute: str, end: int) -> tuple[Ints, list[str]]:
    """The rows of an attribute's changes before the step `end`, and their texts."""
    rows, texts = texts_of(frame, attribute)
    kept = [
        at
        for at, interval in enumerate(frame.interval_of_change[rows])
        if interval < len(frame.steps["step"]) and frame.steps["step"][interval] < end and texts[at]
    ]
    return rows[kept], [texts[at] for at in kept]


def _moments(frame: Frame, rows: Ints) -> Keys:
    """A key for each change: its step, and its number among those of the step."""
    steps = frame.steps["step"][frame.interval_of_change[rows]]
    number = np.arange(len(rows)) - np.searchsorted(steps, steps)
    return mixed(steps.astype(np.uint64), number.astype(np.uint64))


def _equal(attribute: str, mine: str, its: str) -> bool:
    if attribute != SCALING:
        return mine == its
    return abs(float(mine) - float(its)) <= _EQUAL * max(float(mine), float(its))
