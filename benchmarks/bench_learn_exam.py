"""Counts the exam: silent mistakes that somebody wrote who had not read the judge.

Packs are learned from healthy runs and checked on both variants of each case in `learn_exam`:

shipped   the packs of the package for one process, or for the axis of the ranks
own1      the healthy twin with another seed
own2      the same, and one more seed
kind2     two other programs of the same kind, drawn at random
random5   five other programs, drawn at random

The twin with the seed of the check is in no pack.  A mistake is caught if its variant breaks a rule
that the twin keeps.  Each pack is counted twice: "reported" are the rules that the default
confidence lets through, "all" is every rule of the pack, as in TrainCheck's evaluation.
The trigger is the step that the case names, else the step of the first record in which the two
variants differ.  A message names the true cause as `_exam_causes.py` says.
Every learned pack is written to a file and loaded again.

`--set 2` to `--set 7` count another set, whose packs are learned from its programs only.  A column
is not counted for a program of which the set has too few others of its kind, or from whose run
nothing can be learned; the output says so.

`--rows FILE` keeps a row for each program and pack, also while it counts.  `--half SEED` takes a
random half of the cases and of the programs without a mistake, and `--other-half SEED` takes those
that `--half SEED` leaves out.  Runs are kept in `.bench`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from _exam_causes import names_cause
from _exam_runs import Call, call, observed
from _kept_runs import KeptRuns
from _measure import finish, machine, show
from _rungs import session
from exam_cases import Case, Program
from exam_sets import SETS, halves

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.learn.check.cluster import clusters
from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.verifier import CONFIDENCE
from pytest_trainsafe.judges.learn.events.events import Call as ApiCall
from pytest_trainsafe.judges.learn.events.events import Change, Value
from pytest_trainsafe.judges.learn.events.table import Table, replay
from pytest_trainsafe.judges.learn.inference.learn import LearnError, learn
from pytest_trainsafe.judges.learn.inference.select import confidence
from pytest_trainsafe.judges.learn.packs.pack import SUFFIX, Pack, pack_of, write_pack
from pytest_trainsafe.judges.learn.packs.read import PackError
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.deploy import load_packs
from pytest_trainsafe.judges.learn.watch import Violation

RULES = relations()
COLUMNS = ("shipped", "own1", "own2", "kind2", "random5")
VIEWS = ("reported", "all")
#: The programs whose packs are those of `fully_shard`, by a part of their names.
_SHARDED = ("fsdp", "sharded_pretraining", "sharded_restart", "coarse_weights")


@dataclass
class Row:
    """What one pack says of one program.

    `views` has, for each of VIEWS, the messages of the blocks that the twin (or the program without
    a mistake) raises, and those that the mistake raises and the twin does not, with their steps.
    """

    program: str
    column: str
    rules: int
    loads: bool
    trigger: int | None = None
    faulty: bool = False
    alarms: dict[str, list[str]] = field(default_factory=dict)
    found: dict[str, list[tuple[int | None, str]]] = field(default_factory=dict)

    def caught(self, view: str) -> bool:
        """Whether the mistake is caught."""
        return bool(self.found.get(view))

    def in_time(self, view: str) -> bool:
        """Whether it is caught at most a step after its trigger."""
        if not self.caught(view):
            return False
        step = self.found[view][0][0]
        return step is None or self.trigger is None or step <= self.trigger + 1

    def named(self, view: str) -> bool:
        """Whether the first message names the true cause."""
        return self.caught(view) and names_cause(self.program, self.found[view][0][1])


class Bench:
    """Learns and checks; every run is observed once.

    `every` has the programs that packs are learned from.
    """

    def __init__(
        self,
        kept: KeptRuns,
        every: Sequence[Case | Program],
        cases: Sequence[Case],
        healthy: Sequence[Program],
        columns: Sequence[str],
        folder: Path,
    ) -> None:
        self._kept, self._cases, self._healthy, self._folder = kept, cases, healthy, folder
        self._every, self._columns = every, columns
        self._shipped: dict[tuple[str, ...], Sequence[Pack]] = {}

    def rows(self) -> Iterator[Row]:
        """The rows of all cases, then those of the programs without a mistake."""
        bugs = [call(case.module, case.world, healthy=False) for case in self._cases]
        every: list[Case | Program] = [*self._cases, *self._healthy]
        seeds = (0, 1, 2) if {*self._columns} - {"shipped"} else (0,)
        twins = [_twin(each, seed) for each in every for seed in seeds]
        drawn = [column for column in self._columns if column in COLUMNS[3:]]
        others = [each for of in every for column in drawn for each in self._inputs(of, column)]
        # All runs of ranks share one pair of processes.
        observed(self._kept, [each for each in (*bugs, *twins, *others) if each.world > 1])
        for case in self._cases:
            twin, bug = self._runs(_twin(case, 0), call(case.module, case.world, healthy=False))
            step = re.search(r"\bstep (\d+)", case.trigger)
            trigger = int(step[1]) if step else _parted(twin, bug)
            for column in self._columns:
                yield from self._row(case, column, trigger, twin, bug)
        for program in self._healthy:
            (run,) = self._runs(_twin(program, 0))
            for column in self._columns:
                if column != "kind2" or program.kind != "general":
                    yield from self._row(program, column, None, run, None)

    def _row(
        self,
        of: Case | Program,
        column: str,
        trigger: int | None,
        healthy: ObservedRun,
        bug: ObservedRun | None,
    ) -> Iterator[Row]:
        """The row, or none if there is no pack, which is said on the output."""
        if column != "shipped" and not self._inputs(of, column):
            print(of.name, column, "not counted: the set has too few other programs", flush=True)
            return
        try:
            packs, loads = self._packs(of, column)
        except LearnError as error:
            print(of.name, column, f"not counted: {error}", flush=True)
            return
        row = Row(of.name, column, sum(len(each.invariants) for each in packs), loads, trigger)
        row.faulty = bug is not None
        control = check(healthy, packs, RULES, min_confidence=0.0)
        found = () if bug is None else check(bug, packs, RULES, min_confidence=0.0).violations
        own = [each for each in found if each.invariant.id not in control.broken]
        for view in VIEWS:
            row.alarms[view] = [text for _, text in _blocks(control.violations, view, healthy)]
            row.found[view] = _blocks(own, view, healthy)
        yield row

    def _packs(self, of: Case | Program, column: str) -> tuple[Sequence[Pack], bool]:
        """The packs of a column, and whether the learned one can be read back."""
        if column == "shipped":
            return self._shipped_for(of), True
        pack = pack_of(column, learn(self._runs(*self._inputs(of, column))))
        path = self._folder / f"{column}{SUFFIX}"
        write_pack(pack, path, RULES)
        try:
            load_packs([str(path)], self._folder, RULES)
        except PackError:
            return [pack], False
        return [pack], True

    def _shipped_for(self, of: Case | Program) -> Sequence[Pack]:
        names = ["pytorch", "amp"]
        if of.world > 1:
            axis = _twin(of, 0).axis
            sharded = any(part in of.name for part in _SHARDED)
            names.append("fsdp" if sharded else "tensor_parallel" if axis == "tp" else "ddp")
        key = tuple(names)
        if key not in self._shipped:
            self._shipped[key] = load_packs(names, self._folder, RULES)
        return self._shipped[key]

    def _inputs(self, of: Case | Program, column: str) -> list[Call]:
        """The healthy runs that the pack of a column is learned from; none if too few."""
        if column in ("own1", "own2"):
            return [_twin(of, seed) for seed in range(1, 1 + int(column[-1]))]
        others = [each for each in self._every if each.name != of.name]
        if column == "kind2":
            others = [each for each in others if each.kind == of.kind]
        draw, count = random.Random(f"{of.name} {column}"), int(column[-1])
        if len(others) < count:
            return []
        return [_twin(each, 1) for each in draw.sample(others, count)]

    def _runs(self, *calls: Call) -> list[ObservedRun]:
        found = observed(self._kept, calls)
        return [found[each] for each in calls]


def _twin(of: Case | Program, seed: int) -> Call:
    """The healthy run of a program; seed 0 is the one that is checked."""
    arguments: dict[str, int | bool] = {"seed": seed} if seed else {}
    if isinstance(of, Case):
        arguments["healthy"] = True
    return call(of.module, of.world, **arguments)


def _blocks(
    violations: Sequence[Violation], view: str, run: ObservedRun
) -> list[tuple[int | None, str]]:
    """The blocks of a report: the step and the message of each."""

    def shown(each: Violation) -> bool:
        relation = RULES[each.invariant.claim.relation]
        sure = confidence(each.invariant, relation, run.program, run.setting)
        return view == "all" or sure >= CONFIDENCE

    blocks = clusters([each for each in violations if shown(each)], RULES)
    leads = [each.lead for each in blocks]
    return [(lead.step, f"{_says(lead)} | {lead.quoted}") for lead in leads]


def _says(lead: Violation) -> str:
    claim = lead.invariant.claim
    return RULES[claim.relation].explain(claim).sentence


class _Stream:
    """A Listener that keeps what happened, without the numbers of objects."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.steps: list[int | None] = []

    def entered(self, call: ApiCall) -> None:
        self._add(call.meta.get("step"), "enter", call.api)

    def left(self, call: ApiCall) -> None:
        values = sorted((name, _content(value)) for name, value in call.values.items())
        self._add(call.meta.get("step"), "leave", call.api, *values)

    def changed(self, change: Change) -> None:
        what = change.object, change.attribute, _content(change.after)
        self._add(change.meta.get("step"), "change", *what)

    def step_ended(self, step: int) -> None:
        """Nothing: the next record tells."""

    def _add(self, step: object, *what: object) -> None:
        self.seen.append(what)
        self.steps.append(step if isinstance(step, int) else None)


def _content(value: Value) -> object:
    return value.tensor.digest if value.tensor is not None else repr(value.plain)


def _parted(twin: ObservedRun, bug: ObservedRun) -> int | None:
    """The step of the first record in which two runs differ; None if they do not differ."""
    steps = [_parted_rank(*pair) for pair in zip(twin.tables, bug.tables, strict=True)]
    return min((step for step in steps if step is not None), default=None)


def _parted_rank(twin: Table, bug: Table) -> int | None:
    streams = _Stream(), _Stream()
    for table, stream in zip((twin, bug), streams, strict=True):
        replay(table, stream)
    healthy, faulty = streams
    for at, (one, other) in enumerate(zip(healthy.seen, faulty.seen, strict=False)):
        if one != other:
            return faulty.steps[at]
    longer = max(streams, key=lambda each: len(each.seen))
    shorter = min(len(each.seen) for each in streams)
    return longer.steps[shorter] if shorter < len(longer.seen) else None


def summary(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """A line of the table for each column and view."""
    lines: list[tuple[object, ...]] = []
    for column in COLUMNS:
        for view in VIEWS:
            cases = [row for row in rows if row.column == column and row.faulty]
            others = [row for row in rows if row.column == column and not row.faulty]
            lines.append(
                (
                    column,
                    view,
                    f"{sum(row.caught(view) for row in cases)} of {len(cases)}",
                    sum(row.in_time(view) for row in cases),
                    sum(row.named(view) for row in cases),
                    sum(bool(row.alarms[view]) for row in cases),
                    f"{sum(bool(row.alarms[view]) for row in others)} of {len(others)}",
                    sum(not row.loads for row in (*cases, *others)),
                )
            )
    return lines


def main() -> None:
    """Count the exam."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="Write the rows to this file, as JSON")
    parser.add_argument("--set", type=int, choices=SETS, default=1)
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--half", type=int, metavar="SEED", help="A random half of the cases")
    half.add_argument("--other-half", type=int, metavar="SEED", help="What --half leaves out")
    parser.add_argument("--columns", nargs="*", choices=COLUMNS, default=COLUMNS)
    parser.add_argument("--names", nargs="*", help="These cases only")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine()
    cases, healthy = SETS[asked.set]
    every: list[Case | Program] = [*cases, *healthy]
    if asked.half is not None:
        cases, healthy = halves(asked.set, asked.half)[0]
    if asked.other_half is not None:
        cases, healthy = halves(asked.set, asked.other_half)[1]
    if asked.names is not None:
        cases = [case for case in cases if case.name in asked.names]
        healthy = [each for each in healthy if each.name in asked.names]
    rows: list[Row] = []
    with session(Settings()) as opened, tempfile.TemporaryDirectory() as folder:
        kept = KeptRuns(opened)
        bench = Bench(kept, every, cases, healthy, asked.columns, Path(folder))
        for row in bench.rows():
            rows.append(row)
            print(row.program, row.column, row.rules, row.caught("reported"), flush=True)
            if asked.rows:
                asked.rows.write_text(json.dumps([asdict(each) for each in rows], indent=1))
    columns = ("pack", "rules", "caught", "in time", "named", "twins", "healthy", "refused")
    show("Exam", columns, summary(rows))
    finish("learn_exam", facts, {"rows": summary(rows)})


if __name__ == "__main__":
    main()
