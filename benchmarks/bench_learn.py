"""Learns invariants from the healthy programs, and checks the silent errors and other programs.

Errors: one pack from all healthy programs in all of their configurations.  An error counts as
caught if its faulty variant breaks an invariant that its healthy variant, the control, keeps;
"first" is the rule that leads the first block, and "named" says whether it names the true cause.
Packs never see a program of an error.

Held out: each healthy program, in all of its configurations, is checked against a pack from the
others.  Every block that is reported is an alarm.

False alarms, as TrainCheck's section 5.3: in each class, packs from some programs are checked on
other configurations of these and on the other programs of the class.  The share is that of the
invariants with an example that are broken; what is reported at the default confidence is counted
apart.  `--quick` leaves the false alarms out, `--class NAME` takes one class, and `--write` writes
a section of docs/bugs.md.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _measure import ROOT, finish, machine, median, show
from _observed_runs import load_toolkit, observed_error, observed_healthy
from _page import write_section
from _rungs import session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judge.learn.check.cluster import Cluster, clusters, touches
from pytest_trainsafe.judge.learn.check.offline import Checked, check
from pytest_trainsafe.judge.learn.inference.learn import learn
from pytest_trainsafe.judge.learn.packs.pack import Pack, pack_of
from pytest_trainsafe.judge.learn.registry import relations
from pytest_trainsafe.judge.learn.relation import Relation
from pytest_trainsafe.judge.learn.run import ObservedRun
from pytest_trainsafe.reference_models.healthy import FAMILIES, PROGRAMS, Healthy
from pytest_trainsafe.reference_models.silent_errors import ERRORS, SilentError
from pytest_trainsafe.runs.session import Session

PAGE = ROOT / "docs" / "bugs.md"

#: Numbers of input programs, and how many sets of them are drawn for each.
INPUTS, DRAWS = (2, 3, 5, 6), 3


@dataclass
class Verdict:
    """What the check says of one error.

    `own` are the blocks with a rule that the control keeps; `control` counts the control's blocks.
    """

    error: SilentError
    own: Sequence[Cluster]
    control: int
    relations: Mapping[str, Relation]

    @property
    def row(self) -> tuple[object, ...]:
        """For the table."""
        if not self.own:
            return (self.error.name, "no", "", self.control, 0, "", "")
        lead = self.own[0].lead
        claim = lead.invariant.claim
        step = "-" if lead.step is None else lead.step
        rule = self.relations[claim.relation].explain(claim).sentence
        blocks = len(self.own)
        named = "yes" if self.named else "no"
        when = f"{self.error.trigger} / {step}"
        return (self.error.name, "yes", when, self.control, blocks, named, rule)

    @property
    def named(self) -> bool:
        """Whether the first block names the true cause."""
        return bool(self.own) and any(map(self.error.named, touches(self.own[0].lead)))


def judged(error: SilentError, healthy: ObservedRun, faulty: ObservedRun, pack: Pack) -> Verdict:
    """Check both variants of an error."""
    rules = relations()
    control, found = check(healthy, [pack], rules), check(faulty, [pack], rules)
    # What the control breaks too is no sign of the error.
    own = [each for each in found.violations if each.invariant.id not in control.broken]
    return Verdict(error, clusters(own, rules), len(clusters(control.violations, rules)), rules)


@dataclass
class Alarms:
    """Sums over checks of healthy programs."""

    triggered: int = 0
    broken: int = 0
    reported: int = 0
    checks: int = 0

    def add(self, every: Checked, default: Checked) -> None:
        """Add a check of all invariants, and one at the default confidence."""
        self.checks += 1
        self.triggered += len(every.triggered)
        self.broken += len(every.broken)
        self.reported += len(clusters(default.violations, relations()))

    @property
    def share(self) -> str:
        """The share of deployed invariants that are broken."""
        return f"{100 * self.broken / max(1, self.triggered):.1f} %"


def false_alarms(
    programs: Sequence[Healthy],
    runs: Mapping[str, ObservedRun],
    variants: Mapping[str, Sequence[ObservedRun]],
    inputs: int,
    draw: random.Random,
) -> tuple[Alarms, Alarms]:
    """Across configurations and across pipelines, with packs from `inputs` programs."""
    configurations, pipelines, rules = Alarms(), Alarms(), relations()
    sets = list(itertools.combinations([each.name for each in programs], inputs))
    for chosen in draw.sample(sets, min(DRAWS, len(sets))):
        pack = pack_of("inputs", learn([runs[name] for name in chosen]))
        for name, run in runs.items():
            targets = variants[name] if name in chosen else [run]
            for target in targets:
                alarms = configurations if name in chosen else pipelines
                alarms.add(
                    check(target, [pack], rules, min_confidence=0.0), check(target, [pack], rules)
                )
    return configurations, pipelines


def held_out(runs: Sequence[ObservedRun]) -> Mapping[str, int]:
    """How many blocks each program raises against a pack from the others, where there are any."""
    found: dict[str, int] = {}
    rules = relations()
    for program in sorted({run.program for run in runs}):
        others = [run for run in runs if run.program != program]
        pack = pack_of("others", learn(others))
        for run in runs:
            if run.program == program:
                causes = clusters(check(run, [pack], rules).violations, rules)
                for cause in causes:
                    print(f"alarm: {program}: {cause.lead.quoted}")
                if causes:
                    found[program] = found.get(program, 0) + len(causes)
    return found


TEXT = """\
### What the learn judge says of them

One pack is learned from the {programs} healthy programs in all of their configurations \
({runs} runs, {records} records, {invariants} invariants), never from a program of an error, and \
checked on both variants of each error.
An error is caught if the faulty variant breaks a rule that the healthy variant keeps: {caught} of \
{errors} are, and the first rule names the true cause of {named}.
Healthy variants raise {control} blocks, and healthy programs raise {alarms} with a pack from the \
others.
A report has {median} block in the median and at most {most}.
"Found" is the step of the record that breaks the rule; what runs after an optimizer's step \
belongs to the next one.

Written by `python benchmarks/bench_learn.py --write`.

| error | caught | trigger | found | blocks | true cause named | first rule |
|---|---|---|---|---|---|---|
"""


def write(figures: Mapping[str, Any], verdicts: Sequence[Verdict]) -> None:
    """The section of docs/bugs.md."""
    lines = []
    for each in verdicts:
        name, caught, when, _, blocks, named, rule = each.row
        trigger, _, step = str(when).partition(" / ")
        shown = str(rule).replace("pytest_trainsafe.reference_models.toolkit.", "")
        cells = (name, caught, trigger or each.error.trigger, step, blocks or "", named, shown)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    write_section(PAGE, "learn", TEXT.format(**figures) + "\n".join(lines))


def detect(
    opened: Session, runs: Sequence[ObservedRun]
) -> tuple[dict[str, Any], Sequence[Verdict]]:
    """Learn from all healthy programs and check every error."""
    began = time.process_time()
    learned = learn(runs)
    records, seconds = sum(run.records for run in runs), time.process_time() - began
    print(f"{len(learned.invariants)} invariants of {records} records in {seconds:.1f} s")
    pack = pack_of("healthy", learned)
    verdicts = []
    for error in ERRORS:
        variants = [observed_error(opened, error, faulty) for faulty in (False, True)]
        verdicts.append(judged(error, variants[0], variants[1], pack))
    columns = ("error", "caught", "trigger / found", "control", "blocks", "named", "first")
    show("Silent errors", columns, [(*each.row[:6], str(each.row[6])[:90]) for each in verdicts])
    caught = [each for each in verdicts if each.own]
    blocks = [len(each.own) for each in caught]
    named = sum(each.named for each in caught)
    print(f"\n{len(caught)} of {len(verdicts)} caught, {named} named")
    figures = {
        "programs": len({run.program for run in runs}),
        "runs": len(runs),
        "invariants": len(learned.invariants),
        "records": records,
        "inference_seconds": seconds,
        "errors": len(verdicts),
        "caught": len(caught),
        "missed": [each.error.name for each in verdicts if not each.own],
        "named": named,
        "control": sum(each.control for each in verdicts),
        "median": round(median(blocks)) if blocks else 0,
        "most": max(blocks, default=0),
    }
    return figures, verdicts


def main() -> None:
    """Observe, learn, check, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Leave the false alarms out")
    parser.add_argument(
        "--class", dest="family", choices=FAMILIES, help="False alarms of one class"
    )
    parser.add_argument("--write", action="store_true", help="Write the section of docs/bugs.md")
    asked = parser.parse_args()
    if asked.write and (asked.quick or asked.family):
        parser.error("--write needs all classes and the programs that are held out")
    torch.set_num_threads(1)
    load_toolkit()
    facts, figures = machine(), {}
    with session(Settings()) as opened:
        wanted = [each for each in PROGRAMS if asked.family in (None, each.family)]
        runs = {each.name: observed_healthy(opened, each) for each in wanted}
        variants = {
            each.name: [
                observed_healthy(opened, each, seed, one)
                for seed, one in enumerate(each.variants, start=1)
            ]
            for each in wanted
        }
        if asked.family is None:
            every = [run for each in wanted for run in (runs[each.name], *variants[each.name])]
            found, verdicts = detect(opened, every)
            if not asked.quick:
                alarms = held_out(every)
                print(f"{sum(alarms.values())} alarms of held-out programs: {dict(alarms)}")
                found["alarms"] = sum(alarms.values())
                if asked.write:
                    write(found, verdicts)
            figures["errors"] = found
        rows = []
        for family in () if asked.quick else FAMILIES:
            programs = [each for each in wanted if each.family == family]
            if not programs:
                continue
            own = {each.name: runs[each.name] for each in programs}
            for inputs in INPUTS:
                across, other = false_alarms(programs, own, variants, inputs, random.Random(0))
                rows.append(
                    (family, inputs, across.share, other.share, across.reported, other.reported)
                )
                figures[f"{family} {inputs}"] = {
                    "configurations": [across.broken, across.triggered, across.reported],
                    "pipelines": [other.broken, other.triggered, other.reported],
                }
        columns = ("class", "inputs", "configurations", "pipelines", "reported", "reported")
        show("False alarms", columns, rows)
    finish("learn", facts, figures)


if __name__ == "__main__":
    main()
