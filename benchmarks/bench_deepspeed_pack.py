"""The shipped pack of DeepSpeed: its silence on correct programs, and the faults that it finds.

The correct programs run at Points, with seeds and in loops that the pack was not learned from.
The faults are the bugs of the DeepSpeed catalogue that can be planted, and loops that use the
engine wrongly.  `steps` is the number of steps that a faulty program ended: 0 if it raised before.
Every run is cached in `.bench`.  `--quick` takes a few of each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deepspeed_misuse
import torch
from _kept_runs import KeptRuns
from _measure import finish, machine, show
from _observed_runs import APIS
from _rungs import session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.invariants.recipes import DEEPSPEED_APIS
from pytest_trainsafe.judges.learn.check.cluster import clusters
from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.deploy import load_packs
from pytest_trainsafe.reference_models import deepspeed_gpt, deepspeed_resumed, healthy
from pytest_trainsafe.reference_models.deepspeed_bugs import BUGS
from pytest_trainsafe.reference_models.deepspeed_bugs.programs import small, tensor_parallel

RULES = relations()

#: The axes of a Point; what else a case names is an argument of its program.
_AXES = ("dp", "tp", "pp", "cp", "ep", "zero", "dtype")

_PROGRAMS: dict[str, Callable[..., Any]] = {
    "small": small.train,
    "tensor_parallel": tensor_parallel.train,
}


@dataclass(frozen=True)
class Program:
    """One run: a program, and its axes and arguments."""

    name: str
    train: Callable[..., Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def observed(self, kept: KeptRuns) -> ObservedRun:
        """The run, from the cache if it was made before."""
        sizes = {name: value for name, value in self.given.items() if name in _AXES}
        arguments = {name: value for name, value in self.given.items() if name not in _AXES}
        apis = (*APIS, *DEEPSPEED_APIS)
        return kept.of_ranks(self.name, self.train, sizes, apis, self.seed, arguments)

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.given.items())])


def correct() -> Iterator[Program]:
    """Programs that the pack must not report, none of which it was learned from."""
    gpt = deepspeed_gpt.train
    sweep: tuple[Mapping[str, Any], ...] = (
        {"dp": 2, "zero": 2, "layers": 1, "hidden": 16},
        {"dp": 2, "zero": 3, "tied": True},
        {"dp": 2, "zero": 0, "loop": "by_hand"},
        {"dp": 2, "zero": 0, "loop": "no_sync"},
        {"dp": 2, "zero": 1, "loop": "discarded"},
        {"dp": 2, "zero": 1, "resized": "shrinking"},
        {"dp": 2, "zero": 2, "overlap_comm": True},
        {"dp": 2, "zero": 2, "offload": True},
        {"dp": 2, "zero": 3, "dtype": "bfloat16"},
        {"dp": 2, "zero": 0, "dtype": "bfloat16"},
        {"tp": 2, "dp": 2, "zero": 1},
        {"dp": 4, "zero": 3},
        {"zero": 1},
    )
    for seed, given in enumerate(sweep, 3):
        yield Program("deepspeed_gpt", gpt, given, seed)
    yield Program("deepspeed_gpt.moe", deepspeed_gpt.moe, {"dp": 2, "ep": 2, "zero": 1}, 4)
    yield Program("deepspeed_gpt.moe", deepspeed_gpt.moe, {"dp": 2, "ep": 1, "zero": 2}, 5)
    yield Program("deepspeed_gpt.ulysses", deepspeed_gpt.ulysses, {"cp": 2, "zero": 1}, 6)
    yield Program("deepspeed_gpt.ulysses", deepspeed_gpt.ulysses, {"cp": 2, "zero": 3}, 7)
    yield Program(
        "deepspeed_gpt.pipeline", deepspeed_gpt.pipeline, {"pp": 2, "dp": 2, "zero": 1}, 8
    )
    for zero in (0, 1, 2, 3):
        yield Program("deepspeed_resumed", deepspeed_resumed.train, {"dp": 2, "zero": zero}, 9)
    for bug in BUGS:
        if not bug.release or bug.planted:
            yield Program(f"{bug.name}-silent", _PROGRAMS[bug.program], bug.silent, 10)
    for stage in (0, 1, 2, 3):
        yield Program("misuse-none", deepspeed_misuse.train, {"dp": 2, "stage": stage}, 11)
    for each in healthy.DEEPSPEED:
        if each.axis:
            given = {each.axis: 2}
            yield Program(f"healthy.{each.name}", healthy.program(each), given, 12)


def faulty() -> Iterator[tuple[str, Program]]:
    """Each fault in words, and its program."""
    for bug in BUGS:
        if bug.planted:
            given = {**bug.triggers, "bug": bug.name}
            yield bug.what, Program(bug.name, _PROGRAMS[bug.program], given)
    for name, what in deepspeed_misuse.MISUSES.items():
        for stage in (0, 2):
            given = {"dp": 2, "misuse": name, "stage": stage}
            yield f"the loop {what}", Program(f"misuse-{name}", deepspeed_misuse.train, given)


def main() -> None:
    """Run, check, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="A few programs of each kind")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    [pack] = load_packs(["deepspeed"], Path("/nowhere"), RULES)
    silent, rows = list(correct()), []
    faults = list(faulty())
    if asked.quick:
        silent, faults = silent[::8], faults[::4]
    alarms, applied, checked = [], 0, 0
    with session(Settings()) as opened:
        kept = KeptRuns(opened)
        for program in silent:
            run = program.observed(kept)
            done = all(len(table.steps["step"]) for table in run.tables)
            found = check(ObservedRun("", run.tables), [pack], RULES)
            checked, applied = checked + 1, applied + len(found.triggered)
            alarms += [f"{program}: {_said(each.invariant)}" for each in found.violations]
            note = "" if done else "; the program failed"
            print(
                f"{program}: {len(found.triggered)} applied, {len(found.violations)} reported{note}"
            )
        for what, program in faults:
            run = program.observed(kept)
            found = check(ObservedRun("", run.tables), [pack], RULES)
            causes = clusters(found.violations, RULES)
            first = _said(causes[0].lead.invariant) if causes else "-"
            ended = min(len(table.steps["step"]) for table in run.tables)
            rows.append((str(program), what[:70], ended, len(causes), first))
            print(rows[-1], flush=True)
    show("Faults", ("program", "fault", "steps", "blocks", "first rule"), rows)
    print(f"{checked} correct programs, {applied} invariants applied, {len(alarms)} reported")
    print("\n".join(alarms))
    count = sum(row[3] > 0 for row in rows)
    print(f"{count} of {len(rows)} faults are found")
    facts = machine()
    finish("deepspeed_pack", facts, {"correct": checked, "reported": len(alarms), "found": count})
    sys.exit(bool(alarms))


def _said(invariant: Any) -> str:
    return RULES[invariant.claim.relation].explain(invariant.claim).sentence


if __name__ == "__main__":
    main()
