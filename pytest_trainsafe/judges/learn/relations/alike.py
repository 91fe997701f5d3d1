"""Alike: what ranks train with is equal on the ranks of an axis, or differs between them.

The observer records texts for each step (`instrument/slips/ranks/`).  `_KINDS` has what each text
is about, and which ranks it is owed on: some claims name an axis, as data differ on the ranks of
dp and not on those of tp, and some hold on all axes.  A claim is kept only where the texts say
something of it: weights that begin different on two ranks owe nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints, Keys, Records
from pytest_trainsafe.judges.learn.columns.ranks import (
    common_steps,
    coordinates,
    join,
    mixed,
    rank_pairs,
)
from pytest_trainsafe.judges.learn.events import slips
from pytest_trainsafe.judges.learn.events.slips import TRAINING
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.relations.conduct import histories
from pytest_trainsafe.judges.learn.relations.conduct.recorded import texts_of
from pytest_trainsafe.judges.learn.relations.consistent import WRAPPER
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_LEAST = 0.5
#: What shows that `fully_shard` has sharded a model.
_SHARD = ("torch.distributed.tensor.DTensor", "data")


@dataclass(frozen=True)
class _Kind:
    """What is claimed of an attribute: `form`, with `rule` and its usual `cause` in words.

    `{ranks}` in the rule stands for the ranks.  If `axis` is true, the claim names their axis.
    `judge` says of the texts of two ranks, in order, whether each pair keeps the claim.  If
    `wrapped` is true, the claim is about models that a wrapper of torch replicates or shards:
    others may share a batch, as where each rank has some experts.
    """

    form: str
    rule: str
    cause: str
    judge: Callable[[Sequence[histories.Pair]], list[bool | None]]
    axis: bool = True
    wrapped: bool = False


_KINDS: Mapping[str, _Kind] = {
    slips.BATCH: _Kind(
        "different",
        "{ranks} train a model that is replicated or sharded with different batches",
        "the ranks read the same data, or draw the same noise: the sampler, the stream or the seed "
        "lacks the rank",
        histories.batches,
        wrapped=True,
    ),
    slips.ROWS: _Kind(
        "different",
        "{ranks} read shares of an epoch that do not overlap",
        "each rank shuffles with a seed of its own before it takes its share",
        histories.shares,
        wrapped=True,
    ),
    slips.SAMPLER: _Kind(
        "equal",
        "samplers that divide the data among {ranks} have one seed, epoch and number of ranks",
        "each rank has a seed of its own, so that shares overlap, or set_epoch is called on some",
        histories.equal,
        axis=False,
    ),
    slips.SUMMED: _Kind(
        "different",
        "what {ranks} sum in a step differs between them",
        "the ranks hold equal shards, or draw the same numbers, as after a resume with the random "
        "state of one rank, so the sum is a multiple of what one has",
        histories.different,
    ),
    slips.DECLARED: _Kind(
        "equal",
        "what is declared to be replicated is equal on {ranks}",
        "the ranks read different rows, or drop other elements, where layers are split among them",
        histories.declared,
        axis=False,
    ),
    slips.SCALING: _Kind(
        "equal",
        "the gradients of a step are scaled by one factor on {ranks}",
        "each rank clips by the norm of its own gradients, and not by that of all",
        histories.factors,
        axis=False,
    ),
    slips.BUFFERS: _Kind(
        "equal",
        "the buffers of a model that begin equal on {ranks} stay equal",
        "each rank updates statistics by its own batches, and nothing reduces them",
        histories.staying,
    ),
    slips.WHOLE: _Kind(
        "equal",
        "weights that are not sharded beside sharded ones, and begin equal on {ranks}, stay equal",
        "the wrapper ignores a parameter, and nothing reduces its gradient",
        histories.staying,
    ),
    slips.SHARDS: _Kind(
        "different",
        "sharded weights that differ between {ranks} do not become equal",
        "each rank loads the part of one rank from a checkpoint",
        histories.apart,
        axis=False,
    ),
    slips.TABLES: _Kind(
        "equal",
        "a table by which one of {ranks} embeds stays equal to the same weight of another one",
        "stages share a table, as the first and the last one do, and nothing sums its gradients",
        histories.tables,
        axis=False,
    ),
    slips.NORM: _Kind(
        "different",
        "gradients of a step that differ between {ranks} have different norms",
        "each rank clips its part of the gradients by the norm of this part, to one limit",
        histories.norms,
        axis=False,
    ),
    slips.LEFT_OUT: _Kind(
        "equal",
        "gradient scalers of {ranks} leave out the same steps",
        "each rank looks for overflows in gradients of its own: ShardedGradScaler tells the others",
        histories.equal,
        axis=False,
    ),
}


class Alike(RelationBase):
    """`attribute` of the training is equal on neighbours along `axis`, or differs between them.

    "" as axis stands for all axes.
    """

    name = "alike"
    several = True
    forms = tuple(
        {
            "form": (form,),
            "attribute": tuple(name for name, each in _KINDS.items() if each.form == form),
            "axis": str,
        }
        for form in ("equal", "different")
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes what half of the steps show, for each axis."""
        for attribute, kind in _KINDS.items():
            for axis, _, passed in _pairs(frames, attribute):
                if passed.mean() >= _LEAST:
                    yield hypothesis("alike", form=kind.form, attribute=attribute, axis=axis)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each pair of ranks and each step in which both have a text."""
        for attribute in sorted({claim.text("attribute") for claim in claims}):
            for axis, records, passed in _pairs(frames, attribute):
                for claim in claims:
                    if claim["attribute"] == attribute and claim["axis"] == axis:
                        found.add(claim, records, passed)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids all preconditions: the claim names the ranks that it is about."""
        return True

    def anywhere(self, claim: Hypothesis) -> bool:
        """True: the claim holds in every context."""
        return True

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the texts, and for batches what shows that a model is wrapped."""
        names = {(TRAINING, claim.text("attribute"))}
        if not _KINDS[claim.text("attribute")].wrapped:
            return Needs(variables=frozenset(names), contents=frozenset())
        return Needs(frozenset({WRAPPER}), frozenset({*names, _SHARD}), frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        """None: the check needs the tables of all ranks."""

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        kind, axis = _KINDS[claim.text("attribute")], claim.text("axis")
        ranks = f"the ranks of {axis}" if axis else "the ranks"
        return Explanation(kind.rule.format(ranks=ranks), kind.cause)


def _pairs(frames: Sequence[Frame], attribute: str) -> Iterator[tuple[str, Records, Bools]]:
    """Yields the axis of two neighbours, and in which of their steps the claim is kept."""
    kind = _KINDS[attribute]
    for one, other in rank_pairs(frames):
        places = coordinates(one), coordinates(other)
        if kind.wrapped and not all(_is_wrapped(frame) for frame in (one, other)):
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
        order = np.argsort(at)
        pairs = [(texts[0][at[each]], texts[1][to[each]]) for each in order]
        kept, passed = np.zeros(len(pairs), bool), np.zeros(len(pairs), bool)
        for each, judged in zip(order, kind.judge(pairs), strict=True):
            kept[each], passed[each] = judged is not None, bool(judged)
        if kept.any():
            axis = axes[0].removesuffix("_rank") if kind.axis else ""
            yield axis, found.only(kept), passed[kept]


def _is_wrapped(frame: Frame) -> bool:
    return WRAPPER in frame.apis or _SHARD in frame.variables


def _texts(frame: Frame, attribute: str, end: int) -> tuple[Ints, list[str]]:
    """The rows of an attribute's changes before the step `end`, and their texts."""
    rows, texts = texts_of(frame, attribute)
    kept = [at for at, step in enumerate(_steps(frame, rows)) if step < end and texts[at]]
    return rows[kept], [texts[at] for at in kept]


def _moments(frame: Frame, rows: Ints) -> Keys:
    """A key for each change: its step, and its number among those of the step."""
    steps = _steps(frame, rows)
    number = np.arange(len(rows)) - np.searchsorted(steps, steps)
    return mixed(steps.astype(np.uint64), number.astype(np.uint64))


def _steps(frame: Frame, rows: Ints) -> Ints:
    """The step of each change; what follows the last step, as with another optimizer, is one."""
    steps = frame.steps["step"].astype(np.int64)
    after = steps[-1:] + 1 if len(steps) else np.zeros(1, np.int64)
    found: Ints = np.concatenate([steps, after])[frame.interval_of_change[rows]]
    return found
