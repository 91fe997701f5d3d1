"""Mutates the parallel reference models: no mutant that changes the function may be proved.

Mutations are those of `bench_mutants.py`, drawn with a seed that is drawn when the benchmark runs.
Each mutant is judged on exact numbers at the cheapest Point that runs the changed lines.  One that
is proved is judged in float64 with three seeds: where float64 finds a difference, the proof is
false.  Ranks are threads by default, so that a mutant that hangs is noticed at once.  Where the
program itself does not finish in time at a Point, so that its lines are not known, the mutants that
might be judged there count as timed out.

    python benchmarks/bench_exact_mutants.py --sample 300 --minutes 20 --rows rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _measure import finish, machine, show
from _mutant_packages import MODELS, MUTATED, Packages
from _mutant_points import PLACES, Covered, Place, covered
from _mutants import Mutation, mutations, sample

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.contract import JudgeOptions
from pytest_trainsafe.judges.exact.proof import proof_of
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.failure import hung
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case

SEEDS = (0, 1, 2)
#: Compiled code cannot run on exact numbers.
RUN = tuple(each for each in PLACES if not dict(each.axes).get("compile", False))
WORDS = {"pass": "proved", "fail": "refuted", "inconclusive": "not covered"}


def main() -> None:
    asked = _arguments()
    facts, began = machine(), time.perf_counter()
    seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)  # now, for a run that is stopped
    rows: list[dict[str, Any]] = []
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainsafe-exact-mutants-") as temporary:
        packages = Packages(asked.rows.resolve().with_suffix(".packages"))
        packages.make()
        sys.path.insert(0, str(packages.folder))
        settings = Settings(
            max_world_size=4,
            device="cpu",
            timeout=asked.timeout,
            localize=0.0,
            launcher=asked.launcher,
        )
        session = Session(settings, Path(temporary))
        try:
            lines = Lines(session, packages, asked.rows.with_suffix(".lines.json"))
            for number, mutation in enumerate(sample(mutations(MODELS / MUTATED), 10**6, seed)):
                if len(rows) >= asked.sample or time.perf_counter() - began > asked.minutes * 60:
                    break
                row = judged(session, packages, lines, mutation, number)
                if row is not None:
                    rows.append({"id": mutation.id, **row})
                    with open(asked.rows, "a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
        finally:
            session.close()
    counts = Counter(str(row["outcome"]) for row in rows)
    kept = [[row["id"], row["place"], row["outcome"]] for row in rows if "proved" in row["outcome"]]
    show("Mutants that are proved", ["mutation", "Point", "outcome"], kept)
    print(f"\nseed {seed}: {len(rows)} mutants in {time.perf_counter() - began:.0f} s\n{counts}")
    finish("exact_mutants", facts, {"seed": seed, "mutants": len(rows), "outcomes": dict(counts)})
    sys.exit(bool(counts["falsely proved"]))


class Lines:
    """The lines that each place runs, measured when they are first needed.

    Most mutants are judged at one of the first places, so few places are measured.  A place whose
    ranks did not finish in time is not measured again.
    """

    def __init__(self, session: Session, packages: Packages, memory: Path) -> None:
        self._session, self._packages, self._memory = session, packages, memory
        self._known: dict[Place, Covered] = {}
        self._late: dict[Place, GroupFailure] = {}

    def at(self, place: Place) -> Covered:
        if place in self._late:
            raise self._late[place]
        if place not in self._known:
            try:
                self._known |= covered(self._session, self._packages, self._memory, (place,))
            except GroupFailure as failure:
                self._late[place] = failure
                raise
        return self._known[place]


def judged(
    session: Session,
    packages: Packages,
    lines: Lines,
    mutation: Mutation,
    number: int,
) -> dict[str, str] | None:
    """The outcome of one mutant; None if no Point runs its lines in the candidate."""
    at = mutation.file, mutation.lines
    try:
        place = next((each for each in RUN if lines.at(each).runs(*at)), None)
    except GroupFailure as failure:
        if not hung(failure.result):
            raise
        why = str(failure).partition("\n")[0]
        print("timed out", mutation.id, why[:100], file=sys.stderr, flush=True)
        return {"outcome": "timed out", "place": "", "why": why[:300]}
    if place is None:
        return None
    package = packages.mutant(mutation, f"exact_mutant_{number}")
    shares = lines.at(place).shares(*at)
    try:
        outcome, why = _outcome(session, packages, place, package, shares)
        if outcome == "proved" and _differs(session, packages, place, package, shares):
            outcome = "falsely proved"
    finally:
        shutil.rmtree(package)
    print(outcome, mutation.id, "at", place, why[:100], file=sys.stderr, flush=True)
    return {"outcome": outcome, "place": str(place), "why": why[:300]}


def _outcome(
    session: Session,
    packages: Packages,
    place: Place,
    package: Path,
    shares: bool,
) -> tuple[str, str]:
    candidate, reference = _sides(session, packages, place, package, shares, 0)
    try:
        judgement = proof_of(candidate.case, Runs(candidate, reference), JudgeOptions())
    except GroupFailure as failure:
        return "ended", str(failure).partition("\n")[0]
    finally:
        session.discard(candidate)
    first = next(iter(judgement.findings), None)
    return WORDS[judgement.verdict], "" if first is None else f"{first.check} {first.message}"


def _differs(
    session: Session, packages: Packages, place: Place, package: Path, shares: bool
) -> bool:
    """Whether float64 finds a difference with any of three seeds."""
    for seed in SEEDS:
        candidate, reference = _sides(session, packages, place, package, shares, seed)
        try:
            verdict = judge_case(candidate, reference).verdict
        except GroupFailure:
            verdict = "fail"
        finally:
            session.discard(candidate)
        if verdict == "fail":
            return True
    return False


def _sides(
    session: Session, packages: Packages, place: Place, package: Path, shares: bool, seed: int
) -> tuple[Any, Any]:
    settings = session.settings._replace(seed=seed, dtypes=("float64",))
    mutated: Case = place.case(packages, settings, package, "float64")
    trusted = place.case(packages, settings, package if shares else None, "float64")
    return session.candidate(mutated), session.reference(trusted)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="How many mutants")
    parser.add_argument("--minutes", type=float, default=20.0, help="Stop after this time")
    parser.add_argument("--seed", type=int, help="Instead of a seed that is drawn")
    parser.add_argument("--rows", type=Path, default=Path("exact_mutants.jsonl"))
    parser.add_argument("--timeout", type=float, default=120.0, help="Of a Run, in seconds")
    parser.add_argument("--launcher", default="threads", help="What starts the ranks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
