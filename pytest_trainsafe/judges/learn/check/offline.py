"""Checks recorded runs.

The recorded events of each rank are replayed to a Verifier.  Then the invariants that compare ranks
are checked on the tables of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.judges.learn.check.applicable import NotChecked, not_checked
from pytest_trainsafe.judges.learn.check.verifier import (
    CONFIDENCE,
    MAX_KEPT,
    Verifier,
    watches_of,
)
from pytest_trainsafe.judges.learn.columns.frame import Frame, Ints, Records
from pytest_trainsafe.judges.learn.columns.light import light_call, light_change
from pytest_trainsafe.judges.learn.events.table import replay
from pytest_trainsafe.judges.learn.invariant import Hypothesis
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.quote import quote
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.watch import Record, Violation, Watch


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: violations in the order of training, and what was not checked.

    `triggered` has the number of judged examples of each invariant, by its id, and `broken` the
    number of those that failed.  `kept` has a record that keeps it.  Invariants with none are left
    out.
    """

    violations: tuple[Violation, ...]
    not_checked: NotChecked
    triggered: Mapping[str, int]
    broken: Mapping[str, int]
    kept: Mapping[str, Record]


def check(
    run: ObservedRun,
    packs: Sequence[Pack],
    relations: Mapping[str, Relation],
    *,
    min_confidence: float = CONFIDENCE,
) -> Checked:
    """Check on a run those invariants of packs whose confidence is at least `min_confidence`."""
    violations: list[Violation] = []
    watches: list[Watch] = []
    for table in run.tables:
        verifier = Verifier(
            packs,
            relations,
            min_confidence=min_confidence,
            program=run.program,
            setting=run.setting,
            rank=table.rank,
            first_step=Frame(table).first_step,
        )
        replay(table, verifier)
        violations += verifier.violations
        watches += verifier.watches
    between = [
        watch
        for watch in watches_of(packs, relations, min_confidence, run.program, run.setting)
        if relations[watch.claim.relation].several
    ]
    if between and len(run.tables) > 1:
        _check_ranks(run, between, relations, violations)
        watches += between
    for order, violation in enumerate(violations):
        violation.order = order
    violations.sort(key=_moment)
    triggered: dict[str, int] = {}
    broken: dict[str, int] = {}
    kept: dict[str, Record] = {}
    for watch in watches:
        name = watch.invariant.id
        triggered[name] = triggered.get(name, 0) + watch.triggered
        broken[name] = broken.get(name, 0) + watch.broken
        if watch.kept is not None:
            kept.setdefault(name, watch.kept)
    return Checked(
        tuple(violations),
        not_checked(packs, watches, relations, len(run.tables)),
        {name: count for name, count in triggered.items() if count},
        {name: count for name, count in broken.items() if count},
        kept,
    )


def _check_ranks(
    run: ObservedRun,
    watches: Sequence[Watch],
    relations: Mapping[str, Relation],
    violations: list[Violation],
) -> None:
    """Check the invariants that compare ranks, and add their violations to `violations`.

    `watches` are those of these invariants.
    """
    frames = [Frame(table) for table in run.tables]
    groups: dict[str, list[Watch]] = {}
    for watch in watches:
        watch.report = violations.append
        groups.setdefault(watch.claim.relation, []).append(watch)
    for name, group in groups.items():
        by_claim: dict[Hypothesis, list[Watch]] = {}
        for watch in group:
            by_claim.setdefault(watch.claim, []).append(watch)
        relations[name].examples(frames, list(by_claim), Judged(by_claim))


class Judged:
    """Receives the examples that a relation finds, and judges them.

    Several invariants may share a claim.  Each has a Watch in `watches`, which judges those
    examples of the claim to which its invariant applies.  With a `step`, only its examples count.
    """

    def __init__(
        self, watches: Mapping[Hypothesis, Sequence[Watch]], *, step: int | None = None
    ) -> None:
        self._watches, self._step = watches, step

    def add(
        self,
        claim: Hypothesis,
        records: Records,
        passed: npt.NDArray[np.bool_],
        where: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        every = np.ones(len(passed), bool) if where is None else where
        if self._step is not None:
            every = every & (_steps(records) == self._step)
        for watch in self._watches[claim]:
            applies = np.array([watch.applies(each) for each in records.features], bool)
            chosen = every & applies[records.codes] if len(applies) else every
            watch.triggered += int((chosen & passed).sum())
            for code, features in enumerate(records.features if watch.parts else ()):
                own = passed[chosen & (records.codes == code)]
                watch.count(features, int(own.sum()), int((~own).sum()))
            kept = np.flatnonzero(chosen & passed)
            failed = np.flatnonzero(chosen & ~passed)
            for at in failed[:MAX_KEPT]:
                # The last earlier example that satisfies the rule, else the first later one.
                before = kept[kept < at]
                near = before[-1:] if len(before) else kept[:1]
                watch.kept = _record(records, int(near[0]))[0] if len(near) else None
                record, detail, rank = _record(records, int(at))
                watch.rank = rank
                watch.judge(False, record, detail)
            more = len(failed) - min(len(failed), MAX_KEPT)
            watch.triggered += more
            watch.broken += more
            if watch.kept is None and len(kept):
                watch.kept = _record(records, int(kept[0]))[0]


def _record(records: Records, at: int) -> tuple[Record, str, int]:
    """The record with the index `at`, a text on the other rank's record, and the record's rank.

    The text is "" if the record is not compared with one of another rank.
    """
    assert records.frame is not None
    detail = ""
    if records.other is not None:
        frame, rows = records.other
        other = _light(frame, int(rows[at]), records.of_calls)
        detail = f"rank {frame.table.rank} has {quote(other)}"
    made = _light(records.frame, int(records.rows[at]), records.of_calls)
    return made, detail, records.frame.table.rank


def _steps(records: Records) -> Ints:
    """The step in which each record was made."""
    frame = records.frame
    assert frame is not None
    columns = frame.calls if records.of_calls else frame.changes
    return frame.steps_of(columns["meta"][records.rows])


def _light(frame: Frame, row: int, of_calls: bool) -> Record:
    return light_call(frame.table, row) if of_calls else light_change(frame.table, row)


def _moment(violation: Violation) -> tuple[float, int]:
    step = violation.step
    return (float("inf") if step is None else step), violation.order
