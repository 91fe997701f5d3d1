"""Learns invariants from the healthy programs, and checks the silent errors and other programs.

Errors: one pack is learned from all healthy programs in all of their configurations, never from a
program of an error. An error counts as caught if its faulty variant breaks an invariant that its
healthy variant, the control, keeps. "first" is the first invariant of the first block of the
report, and "named" is whether it names the true cause.

Held out: each healthy program, in all of its configurations, is checked against a pack that was
learned from the others. Every block that is reported is a false alarm; `bench_false_alarms.py`
measures those of packs from few programs.

`--quick` omits the held-out programs, and `--write` writes a section of docs/bugs.md. Runs are kept
in `.bench`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _kept_runs import KeptRuns
from _measure import ROOT, finish, machine, median, show
from _observed_runs import load_toolkit
from _page import write_section
from _rungs import session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.learn.check.cluster import Cluster, clusters, touches
from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.reference_models.healthy import PROGRAMS
from pytest_trainsafe.reference_models.silent_errors import ERRORS, SilentError

PAGE = ROOT / "docs" / "bugs.md"


@dataclass
class Verdict:
    """The result of the check of one error.

    `own` are the blocks of rules that the faulty variant breaks and the control keeps. `control`
    is the number of blocks that the control raises.
    """

    error: SilentError
    own: Sequence[Cluster]
    control: int
    relations: Mapping[str, Relation]

    @property
    def row(self) -> tuple[object, ...]:
        """The row of the table."""
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
    # A rule that the control breaks as well is no sign of the error.
    own = [each for each in found.violations if each.invariant.id not in control.broken]
    return Verdict(error, clusters(own, rules), len(clusters(control.violations, rules)), rules)


def held_out(runs: Sequence[ObservedRun]) -> Mapping[str, int]:
    """The number of blocks that each program raises against a pack from the others, if any."""
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
({runs} runs, {records} records, {invariants} invariants), but from no variant of an error, and \
checked on both variants of each error.
An error is caught if the faulty variant breaks a rule that the healthy variant keeps: {caught} of \
{errors} are, and the first rule names the true cause of {named}.
Healthy variants raise {control} blocks, and healthy programs raise {alarms} with a pack from the \
others{held_out}.
A report has {median} block in the median and at most {most}.
"Found" is the step of the record that breaks the rule; code that runs after an optimizer's step \
belongs to the next step.

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


def detect(kept: KeptRuns, runs: Sequence[ObservedRun]) -> tuple[dict[str, Any], Sequence[Verdict]]:
    """Learn from all healthy programs and check every error."""
    began = time.process_time()
    learned = learn(runs)
    records, seconds = sum(run.records for run in runs), time.process_time() - began
    print(f"{len(learned.invariants)} invariants of {records} records in {seconds:.1f} s")
    pack = pack_of("healthy", learned)
    verdicts = [
        judged(error, kept.error(error, faulty=False), kept.error(error, faulty=True), pack)
        for error in ERRORS
    ]
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
    """Observe what is not kept, learn, check, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Omit the programs that are held out")
    parser.add_argument("--write", action="store_true", help="Write the section of docs/bugs.md")
    asked = parser.parse_args()
    if asked.write and asked.quick:
        parser.error("--write needs the programs that are held out")
    torch.set_num_threads(1)
    load_toolkit()
    facts = machine()
    with session(Settings()) as opened:
        kept = KeptRuns(opened)
        runs = [
            run
            for each in PROGRAMS
            for run in (
                kept.healthy(each),
                *(kept.healthy(each, seed, one) for seed, one in enumerate(each.variants, 1)),
            )
        ]
        figures, verdicts = detect(kept, runs)
    if not asked.quick:
        alarms = held_out(runs)
        print(f"{sum(alarms.values())} alarms of held-out programs: {dict(alarms)}")
        figures["alarms"] = sum(alarms.values())
        each = ", ".join(f"`{name}` {count}" for name, count in alarms.items())
        figures["held_out"] = f" ({each})" if each else ""
        if asked.write:
            write(figures, verdicts)
    finish("learn", facts, {"errors": figures})


if __name__ == "__main__":
    main()
