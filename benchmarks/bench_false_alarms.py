"""False alarms of learned packs, and how many programs their invariants apply to.

As in TrainCheck's sections 5.3 and 5.4.  In each class of healthy programs, packs from some of them
are checked on the same programs with other seeds and in other configurations, and on the other
programs of the class.
Two shares of the invariants that a healthy program breaks are printed, whatever their confidence:
of all invariants of the pack, as in TrainCheck's evaluation, and of those that applied to the
program, which is stricter.  What is reported at the default confidence is counted apart and must be
nothing.
Transfer: of the invariants of the packs from five and six programs that no program of the class
breaks, the share that applies to another program of any class, and to more than a quarter of all.

The packs that the package ships are checked on every run too: `--shipped` does nothing else.
Every run is observed once and kept in `.bench`.  `--quick` takes one class, one seed and two sizes.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from _kept_runs import KeptRuns
from _measure import finish, machine, show
from _observed_runs import load_toolkit
from _rungs import session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.invariants.recipes import RECIPES
from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.verifier import CONFIDENCE
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.inference.select import confidence
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.deploy import load_packs
from pytest_trainsafe.reference_models.healthy import FAMILIES, PROGRAMS, Healthy

#: Numbers of input programs, how many sets of them are drawn for each, and the seeds of runs.
INPUTS, DRAWS, SEEDS = (2, 3, 5, 6), 3, (0, 1, 2)
#: What a pack is checked on: other seeds and other configurations of its programs, other programs.
CHECKED = ("seeds", "configurations", "pipelines")
#: Sets of programs from this size on are those of which transfer is measured.
LARGE = 5

RULES = relations()


@dataclass
class Alarms:
    """Sums over checks of healthy programs, each of all invariants of a pack."""

    deployed: int = 0
    triggered: int = 0
    broken: int = 0
    reported: dict[str, int] = field(default_factory=dict)
    checks: int = 0

    def add(self, run: ObservedRun, pack: Pack) -> frozenset[str]:
        """Check a pack on a run; the invariants that it breaks."""
        found = check(run, [pack], RULES, min_confidence=0.0)
        self.checks += 1
        self.deployed += len(pack.invariants)
        self.triggered += len(found.triggered)
        self.broken += len(found.broken)
        for invariant in pack.invariants:
            relation = RULES[invariant.claim.relation]
            sure = confidence(invariant, relation, run.program, run.setting) >= CONFIDENCE
            if sure and invariant.id in found.broken:
                says = relation.explain(invariant.claim).sentence
                text = f"{run.program}: {says} (when {invariant.precondition})"
                self.reported[text] = self.reported.get(text, 0) + 1
        return frozenset(found.broken)

    def __add__(self, other: Alarms) -> Alarms:
        reported = dict(self.reported)
        for text, count in other.reported.items():
            reported[text] = reported.get(text, 0) + count
        return Alarms(
            self.deployed + other.deployed,
            self.triggered + other.triggered,
            self.broken + other.broken,
            reported,
            self.checks + other.checks,
        )

    @property
    def shares(self) -> str:
        """The percentages of the broken invariants: of all, and of those that applied."""
        of_all, of_applied = (
            100 * self.broken / max(1, count) for count in (self.deployed, self.triggered)
        )
        return f"{of_all:.2f} %, {of_applied:.2f} %"

    @property
    def figures(self) -> Sequence[int]:
        """For the last line."""
        reported = sum(self.reported.values())
        return self.broken, self.deployed, self.triggered, reported, self.checks


@dataclass
class Runs:
    """The runs of the programs with one seed: as they are, and in their other configurations."""

    own: Mapping[str, ObservedRun]
    variants: Mapping[str, Sequence[ObservedRun]]


@dataclass
class Transfer:
    """How many of the valid invariants apply to other programs, and to more than a quarter."""

    valid: int = 0
    another: int = 0
    quarter: int = 0


def judged(
    programs: Sequence[Healthy],
    runs: Mapping[int, Runs],
    seed: int,
    inputs: int,
    draws: int,
    transfer: Transfer,
) -> tuple[Alarms, Alarms, Alarms]:
    """Alarms of packs from `inputs` programs with one seed.

    They are checked on the same programs with other seeds and in other configurations, and on the
    other programs.
    """
    seeds, configurations, pipelines = Alarms(), Alarms(), Alarms()
    draw, of_seed = random.Random(1000 * seed + inputs), runs[seed]
    names = [each.name for each in programs]
    sets = list(itertools.combinations(names, inputs))
    for number, chosen in enumerate(draw.sample(sets, min(draws, len(sets)))):
        pack = pack_of("inputs", learn([of_seed.own[name] for name in chosen]))
        broken: set[str] = set()
        for name in names:
            if name not in chosen:
                broken |= pipelines.add(of_seed.own[name], pack)
                continue
            for run in of_seed.variants[name]:
                broken |= configurations.add(run, pack)
            for other in runs.keys() - {seed}:
                broken |= seeds.add(runs[other].own[name], pack)
        # One set a class: every set is checked on all programs of all classes.
        if inputs >= LARGE and not number:
            applied(pack, broken, chosen, of_seed.own, transfer)
    return seeds, configurations, pipelines


def applied(
    pack: Pack,
    broken: Collection[str],
    inputs: Collection[str],
    runs: Mapping[str, ObservedRun],
    transfer: Transfer,
) -> None:
    """Count the programs that each invariant applies to without an alarm."""
    counts = {each.id: 0 for each in pack.invariants if each.id not in broken}
    for name, run in runs.items():
        if name not in inputs:
            found = check(run, [pack], RULES, min_confidence=0.0)
            for invariant in counts:
                counts[invariant] += invariant in found.triggered and invariant not in found.broken
    transfer.valid += len(counts)
    transfer.another += sum(count > 0 for count in counts.values())
    transfer.quarter += sum(4 * count > len(runs) for count in counts.values())


def shipped(runs: Mapping[int, Runs]) -> tuple[int, int, list[str]]:
    """The runs, the checked invariants, and what is reported, of the packs of the package."""
    root = Path("/nowhere")
    packs = {each.name: load_packs([each.name], root, RULES)[0] for each in RECIPES}
    checks, triggered, reported = 0, 0, []
    for seed, of_seed in runs.items():
        for name, own in of_seed.own.items():
            chosen = [
                packs[each.name]
                for each in RECIPES
                if each.name in ("pytorch", "amp") or name in each.programs
            ]
            for run in (own, *of_seed.variants[name]):
                found = check(ObservedRun("", run.tables), chosen, RULES)
                checks += 1
                triggered += len(found.triggered)
                for each in found.violations:
                    says = RULES[each.invariant.claim.relation].explain(each.invariant.claim)
                    reported.append(f"{name}, seed {seed}: {says.sentence}: {each.quoted[:80]}")
    return checks, triggered, reported


def observed(kept: KeptRuns, programs: Sequence[Healthy], seed: int) -> Runs:
    """The runs with one seed."""
    return Runs(
        {each.name: kept.healthy(each, seed) for each in programs},
        {each.name: [kept.healthy(each, seed, one) for one in each.variants] for each in programs},
    )


def main() -> None:
    """Observe what is not kept, learn, check, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="One class, one seed, two sizes")
    parser.add_argument("--class", dest="family", choices=FAMILIES, help="One class only")
    parser.add_argument("--shipped", action="store_true", help="The packs of the package only")
    parser.add_argument("--draws", type=int, default=DRAWS, help="So many sets of each size")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="So many seeds of runs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    load_toolkit()
    families = [asked.family] if asked.family else list(FAMILIES[: 1 if asked.quick else None])
    seeds, sizes = (SEEDS[:1], (2, LARGE)) if asked.quick else (SEEDS[: asked.seeds], INPUTS)
    facts = machine()
    wanted = (
        PROGRAMS
        if not (asked.quick or asked.family)
        else [p for p in PROGRAMS if p.family in families]
    )
    with session(Settings()) as opened:
        kept = KeptRuns(opened)
        runs = {seed: observed(kept, wanted, seed) for seed in seeds}
    checks, applied_to, reported = shipped(runs)
    print(
        f"The shipped packs: {checks} runs of {len(wanted)} programs, {applied_to} invariants "
        f"checked, {len(reported)} reported"
    )
    print("\n".join(dict.fromkeys(reported)))
    if asked.shipped:
        return
    rows, figures, every = [], {}, Alarms()
    transfer = Transfer()
    for family in families:
        programs = [each for each in wanted if each.family == family]
        for inputs in sizes:
            sums = [Alarms() for _ in CHECKED]
            for seed in seeds:
                found = judged(programs, runs, seed, inputs, asked.draws, transfer)
                sums = [before + more for before, more in zip(sums, found, strict=True)]
            every = sum(sums, every)
            cells = [f"{each.shares} ({sum(each.reported.values())})" for each in sums]
            rows.append((family, inputs, *cells))
            figures[f"{family} {inputs}"] = dict(
                zip(CHECKED, (each.figures for each in sums), strict=True)
            )
    columns = ("class", "inputs", *(f"{name}: all, applied (reported)" for name in CHECKED))
    show("False alarms", columns, rows)
    for text, count in sorted(every.reported.items()):
        print(f"reported {count} times: {text}")
    valid = max(1, transfer.valid)
    another, quarter = (100 * each / valid for each in (transfer.another, transfer.quarter))
    print(
        f"\nOf {transfer.valid} valid invariants, {another:.0f} % apply to another program and "
        f"{quarter:.0f} % to more than a quarter of {len(wanted)}"
    )
    finish("false_alarms", facts, {**figures, "transfer": vars(transfer)})


if __name__ == "__main__":
    main()
