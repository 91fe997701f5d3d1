"""Learns invariants from the healthy programs, and checks the silent errors and other programs.

Errors: one pack from all healthy programs.  An error counts as caught if its faulty variant breaks
an invariant that its healthy variant, the control, keeps; "first" is the rule that leads the first
block, and "named" says whether it names the true cause.  Packs never see a program of an error.

False alarms, as TrainCheck's section 5.3: in each class, packs from some programs are checked on
other configurations of these and on the other programs of the class.  The share is that of the
invariants with an example that are broken; what is reported at the default confidence is counted
apart.  `--quick` leaves the false alarms out, `--class NAME` takes one class.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from _measure import finish, machine, median, show
from _observed_runs import load_toolkit, observed_error, observed_healthy
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
        return (self.error.name, "yes", when, self.control, blocks, named, rule[:90])

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


def detect(opened: Session, runs: Sequence[ObservedRun]) -> dict[str, object]:
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
    show("Silent errors", columns, [each.row for each in verdicts])
    caught = [each for each in verdicts if each.own]
    blocks = [len(each.own) for each in caught]
    named = sum(each.named for each in caught)
    print(f"\n{len(caught)} of {len(verdicts)} caught, {named} named")
    return {
        "invariants": len(learned.invariants),
        "records": records,
        "inference_seconds": seconds,
        "caught": [each.error.name for each in caught],
        "named": [each.error.name for each in caught if each.named],
        "control": {each.error.name: each.control for each in verdicts},
        "median_blocks": median(blocks) if blocks else 0,
        "most_blocks": max(blocks, default=0),
    }


def main() -> None:
    """Observe, learn, check, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Leave the false alarms out")
    parser.add_argument(
        "--class", dest="family", choices=FAMILIES, help="False alarms of one class"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    load_toolkit()
    facts, figures = machine(), {}
    with session(Settings()) as opened:
        wanted = [each for each in PROGRAMS if asked.family in (None, each.family)]
        runs = {each.name: observed_healthy(opened, each) for each in wanted}
        if asked.family is None:
            figures["errors"] = detect(opened, list(runs.values()))
        rows = []
        for family in () if asked.quick else FAMILIES:
            programs = [each for each in wanted if each.family == family]
            if not programs:
                continue
            own = {each.name: runs[each.name] for each in programs}
            variants = {
                each.name: [observed_healthy(opened, each, 1, one) for one in each.variants]
                for each in programs
            }
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
