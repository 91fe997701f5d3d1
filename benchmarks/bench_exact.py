"""Proves clean Points of the reference models on exact numbers, and refutes the planted bugs.

Prints for each Point whether it is proved, refuted or not covered, and with which operator or
tensor; for each bug of the catalogues, the first wrong tensor.  A clean Point that is refuted,
and a bug that is proved, are errors of the judge.

    python benchmarks/bench_exact.py --combinations 300 --launcher threads

judges random combinations of axes and techniques instead, up to 8 ranks, of all that are valid.
`--steps 1` judges more of them in the same time.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _combinations import PROGRAMS, combinations
from _measure import finish, machine, show
from _points import CLEAN, triggering

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.contract import JudgeOptions
from pytest_trainsafe.judges.exact.proof import proof_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models.bugs import BUGS, OF_DEEPSEEK
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import Program, resolve

#: Sizes at which a Point takes seconds; no two of them are equal.
SMALL = {"hidden": 16, "heads": 4, "seq_len": 8, "vocabulary": 32}
#: The arguments of a combination that its row shows.
SHOWN = ("layers", "microbatches", "clip", "cp_method", "fp8")
WORDS = {"pass": "proved", "fail": "refuted", "inconclusive": "not covered"}


@dataclass(frozen=True)
class Row:
    """One judged Point: a clean program, or one with the bug of this name."""

    program: str
    point: str
    bug: str
    verdict: str
    why: str
    seconds: float


def main() -> None:
    asked = _arguments()
    facts = machine()
    rows = []
    seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
    with tempfile.TemporaryDirectory(prefix="trainsafe-exact-") as temporary:
        settings = Settings(
            localize=0.0, max_world_size=8, launcher=asked.launcher, device="cpu", timeout=1800.0
        )
        session = Session(settings, Path(temporary))
        began = time.perf_counter()
        try:
            chosen = drawn(seed, asked) if asked.combinations else wanted(asked)
            for program, name, point, given, bug in chosen:
                if time.perf_counter() - began > asked.minutes * 60:
                    break
                rows.append(judged(session, program, name, point, given, bug))
                print(rows[-1], file=sys.stderr, flush=True)
        finally:
            session.close()
    clean, planted = ([row for row in rows if bool(row.bug) == wanted] for wanted in (False, True))
    columns = ["", "Point", "bug", "", "", "s"]
    shown = [[r.program, r.point, r.bug, r.verdict, r.why[:70], f"{r.seconds:.1f}"] for r in rows]
    show("On exact numbers", columns, shown)
    counts = {
        "clean": Counter(row.verdict for row in clean),
        "planted": Counter(row.verdict for row in planted),
    }
    print("\n" + "\n".join(f"{what}: {dict(count)}" for what, count in counts.items()))
    finish("exact", facts, {what: dict(count) for what, count in counts.items()})
    sys.exit(bool(counts["clean"]["refuted"] or counts["planted"]["proved"]))


def wanted(asked: argparse.Namespace) -> Iterator[tuple[str, str, Point, Mapping[str, Any], str]]:
    """Module, name, Point, arguments and bug of each program to judge."""
    for each in CLEAN:
        if asked.only and each.name not in asked.only:
            continue
        for point in each.points[: 1 if asked.quick else None]:
            yield each.program, each.name, point, each.arguments, ""
    for bug in (*BUGS, *OF_DEEPSEEK):
        if not asked.only or bug.name in asked.only:
            given = {**bug.arguments, "bug": bug.name}
            yield bug.program, bug.program, triggering(bug), given, bug.name


def drawn(
    seed: int, asked: argparse.Namespace
) -> Iterator[tuple[str, str, Point, Mapping[str, Any], str]]:
    """Random combinations, without repetition; each program in turn, until it has no more."""
    chance = random.Random(seed)
    found = {name: list(combinations(name)) for name in PROGRAMS}
    numbers = {name: len(each) for name, each in found.items()}
    print(f"seed {seed}; {sum(numbers.values())} valid combinations: {numbers}", flush=True)
    for each in found.values():
        chance.shuffle(each)
    turns = itertools.zip_longest(*found.values())
    one_by_one = (combination for turn in turns for combination in turn if combination is not None)
    for combination in itertools.islice(one_by_one, asked.combinations):
        given = {**combination.arguments, "steps": asked.steps}
        words = " ".join(f"{key}={given[key]}" for key in SHOWN if key in given)
        yield combination.program, f"{combination.program} {words}", combination.point, given, ""


def judged(
    session: Session,
    module: str,
    name: str,
    point: Point,
    given: Mapping[str, Any],
    bug: str,
) -> Row:
    """The judgement of one Point of a reference model, at small sizes for those not given."""
    program = resolve(importlib.import_module(f"pytest_trainsafe.reference_models.{module}").train)
    known = program.complete({})
    # The size of a bucket is that of the sizes by default.
    own = {} if "bucket" in given else SMALL
    small = {key: value for key, value in own.items() if key in known and key not in given}
    return judged_program(session, program, name, point, {**small, **given}, bug)


def judged_program(
    session: Session,
    program: Program,
    name: str,
    point: Point,
    given: Mapping[str, Any],
    bug: str = "",
    planted: str = "bug",
) -> Row:
    """The judgement of one Point; the argument `planted` has no value in the reference."""
    arguments = program.complete(given)
    plain = {**arguments, planted: ""} if planted in arguments else arguments
    case = Case(point, program, session.settings, plain, arguments)
    began = time.perf_counter()
    candidate, reference = session.candidate(case), session.reference(case)
    try:
        judgement = proof_of(case, Runs(candidate, reference), JudgeOptions())
        first = next(iter(judgement.findings), None)
        why = "" if first is None else f"{first.about or ''} {first.message}".strip()
        verdict = WORDS[judgement.verdict]
    except GroupFailure as failure:
        verdict, why = "error", str(failure).partition("\n")[0]
    session.discard(candidate)
    return Row(name, str(point), bug, verdict, why, time.perf_counter() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="One Point of each clean program")
    parser.add_argument("--combinations", type=int, help="Judge as many random valid combinations")
    parser.add_argument("--seed", type=int, help="Of the combinations, instead of one drawn")
    parser.add_argument("--steps", type=int, default=2, help="Of a combination")
    parser.add_argument("--minutes", type=float, default=math.inf, help="Stop after this time")
    parser.add_argument("--launcher", default="auto", help="What starts the ranks")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="Only these programs and bugs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
