"""Mutates the parallel reference models, one change at a time: every mutant must be noticed.

Each mutant is a copy of the models in a separate package, like a user's package. It is judged as a
test judges it: first in float64 at the cheapest Point that runs the changed lines, then, while it
passes, at further Points, then in bfloat16. If the single device runs none of the changed lines,
the reference is that of the unchanged package, which is run once.

    python benchmarks/bench_mutants.py --sample 250 --seed 0 --rows rows.jsonl --jobs 2
    python benchmarks/bench_mutants.py --rows rows.jsonl --resume      # goes on where it stopped
    python benchmarks/bench_mutants.py --rows rows.jsonl --show        # the tables of what there is
    python benchmarks/bench_mutants.py --only 'zigzag.py put_in_order: ...'   # one, with its report

A mutant that passes everywhere must be equivalent, with an argument in docs/mutants.md. The exit
status is 0 if every such mutant has one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _measure import finish, machine, show
from _mutant_blame import named
from _mutant_packages import MODELS, MUTATED, Packages
from _mutant_points import PLACES, Covered, Place, covered
from _mutant_rows import chosen, options, parsed, read, show_survivors
from _mutants import Mutation, mutations, sample

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.point_summary import PointSummary

Row = dict[str, Any]

SETTINGS = Settings(max_world_size=4, device="cpu", timeout=60.0, localize=24 * 3600.0)

#: The number of mutants that one session judges with the references that it keeps.
OF_A_SESSION = 60

#: The largest number of Points at which a mutant that passes in float64 is judged in bfloat16.
BELOW = 6

NOTICED = ("reported", "inconclusive", "crashed", "hung")


def main() -> None:
    asked = _arguments()
    if asked.only:
        sys.exit(only(asked))
    facts, began = machine(), time.perf_counter()
    if not asked.show:
        run(asked)
    rows = read(asked.rows)
    if not rows:
        raise SystemExit(f"there are no rows in {asked.rows}")
    unexplained = show_rows(rows)
    if not asked.show:
        print(f"{time.perf_counter() - began:.0f} s; rows: {asked.rows}")
    outcomes = Counter(row["outcome"] for row in rows)
    blame = Counter(row["named"] for row in rows if row["outcome"] == "reported")
    figures = {"mutants": len(rows), "outcomes": outcomes, "named": blame}
    finish("mutants", facts, {**figures, "unexplained": unexplained})
    sys.exit(bool(unexplained))


def run(asked: argparse.Namespace) -> None:
    """Judge the requested mutants that have no row yet, in `--jobs` processes."""
    drawn = sample(mutations(MODELS / MUTATED), asked.sample, asked.seed)
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    if not asked.resume:
        asked.rows.write_text("")
    done = {
        row["id"]
        for row in read(asked.rows)
        if row["outcome"] in NOTICED or row.get("most", 0) >= asked.places
    }
    context = multiprocessing.get_context("spawn")
    waiting: Any = context.Queue()
    for mutation in drawn:
        if mutation.id not in done:
            waiting.put(mutation)
    until = time.time() + asked.minutes * 60
    given = (waiting, str(asked.rows), until, asked.places, not asked.no_localize)
    with Workplace(asked.rows) as place:
        place.measure()
    workers = [context.Process(target=work, args=given) for _ in range(asked.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    waiting.cancel_join_thread()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a process that judges mutants died; continue with --resume")


def work(waiting: Any, rows: str, until: float, most: int, localize: bool) -> None:
    """Judge mutants from the queue `waiting` until it is empty or the time `until` is reached."""
    while time.time() < until:
        with Workplace(Path(rows), localize, fresh=False) as place:
            place.measure()
            for _ in range(OF_A_SESSION):
                try:
                    mutation = waiting.get(timeout=0.5)
                except queue.Empty:
                    return
                row = place.judge(mutation, most)
                with open(rows, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{row['outcome']:12} {row['seconds']:6.1f} s  {row['id']}", file=sys.stderr)
                if time.time() >= until:
                    return


class Workplace:
    """A session, and a folder of packages on the module search path.

    All workplaces share some files beside the rows: the packages, which a `fresh` workplace makes
    anew, the references that were run, and the lines that each Point runs.
    """

    def __init__(self, rows: Path, localize: bool = True, *, fresh: bool = True) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="trainsafe-mutants-")
        self._lines = rows.with_suffix(".lines.json")
        self._count = 0
        self.settings = SETTINGS if localize else SETTINGS._replace(localize=0.0)
        self.packages = Packages(rows.resolve().with_suffix(".packages"))
        if fresh:
            self.packages.make()
        sys.path.insert(0, str(self.packages.folder))
        cache = rows.resolve().with_suffix(".references")
        self.session = Session(self.settings, Path(self._temporary.name), cache)
        self.covered: dict[Place, Covered] = {}

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        sys.path.remove(str(self.packages.folder))
        self._temporary.cleanup()

    def measure(self) -> None:
        """Find the lines that each Point runs, or read them if they were found before."""
        self.covered = covered(self.session, self.packages, self._lines)

    def judge(self, mutation: Mutation, most: int) -> Row:
        """The row of a mutant, judged at up to `most` Points until it is noticed."""
        began = time.perf_counter()
        self._count += 1
        package = self.packages.mutant(mutation, f"mutant_{os.getpid()}_{self._count}")
        row: Row = {"id": mutation.id, "file": mutation.file, "kind": mutation.kind}
        row |= {"places": [], "most": most}
        row |= {"outcome": "survived", "named": "", "first": "", "report": ""}
        for place, dtypes in self.ways(mutation, most):
            row["places"].append(f"{place} {dtypes[-1]}")
            row |= self.verdict(mutation, package, place, dtypes)
            if row["outcome"] in NOTICED:
                break
        else:
            if not row["places"]:
                row["outcome"] = "unreached"
        shutil.rmtree(package)
        return {**row, "seconds": round(time.perf_counter() - began, 2)}

    def ways(self, mutation: Mutation, most: int) -> Iterator[tuple[Place, tuple[str, ...]]]:
        """Yields the Points and dtypes at which a mutant is judged, the cheapest first."""
        at = mutation.file, mutation.lines
        reached = [place for place in PLACES if self.covered[place].runs(*at)]
        # Where only the reference runs the lines, it alone is wrong.
        reached += [place for place in PLACES if self.covered[place].only_shares(*at)]
        chosen = diverse(reached, most)
        for place in chosen:
            yield place, ("float64",)
        for place in diverse(chosen, max(1, min(most // 3, BELOW))):
            yield place, ("float64", "bfloat16")

    def verdict(
        self, mutation: Mutation, package: Path, place: Place, dtypes: tuple[str, ...]
    ) -> Row:
        """The outcome of a test of the mutant at one Point, as parts of its row; {} for a pass."""
        settings = self.settings._replace(dtypes=dtypes)
        shares = self.covered[place].shares(mutation.file, mutation.lines)
        mutated = place.case(self.packages, settings, package, dtypes[-1])
        trusted = place.case(self.packages, settings, package if shares else None, dtypes[-1])
        candidate, reference = self.session.candidate(mutated), self.session.reference(trusted)
        published: list[PointSummary] = []
        candidate.runs.publish = published.append
        try:
            text = report_of(judge_case(candidate, reference))
        except GroupFailure as failure:
            result = failure.result
            waited = any(rank.status == "hung" for rank in result.ranks) and not result.stuck
            return {
                "outcome": "hung" if waited and result.first_failed is None else "crashed",
                "named": "file" if f"{MUTATED}/{mutation.file}" in str(failure) else "other",
                "report": str(failure),
            }
        finally:
            self.session.discard(candidate)
        if not text:
            return {}
        first = published[0].get("first", {"where": ""}) if published else {"where": ""}
        failed = published[0]["verdict"] == "fail" if published else True
        return {
            "outcome": "reported" if failed else "inconclusive",
            "named": named(text, package, mutation) if failed else "",
            "first": first["where"],
            "report": text,
        }


def diverse(places: Sequence[Place], most: int) -> list[Place]:
    """Chooses up to `most` places: the first, then each time the one with most new words."""
    left, chosen, seen = list(places), list[Place](), set[str]()
    while left and len(chosen) < most:
        best = max(left, key=lambda place: len(place.words - seen)) if chosen else left[0]
        left.remove(best)
        chosen.append(best)
        seen |= best.words
    return chosen


def show_rows(rows: Sequence[Row]) -> list[str]:
    """Print the tables, and return the ids of the survivors without an argument."""
    outcomes = sorted({row["outcome"] for row in rows})
    kinds = sorted({row["kind"] for row in rows})
    table = [
        [kind, *(_count(rows, kind=kind, outcome=each) for each in outcomes)] for kind in kinds
    ]
    table.append(["all", *(_count(rows, outcome=each) for each in outcomes)])
    show("Mutants", ["", *outcomes], table)
    reported = [row for row in rows if row["outcome"] == "reported"]
    blame = Counter(row["named"] for row in reported)
    show(
        f"What {len(reported)} reports name",
        ["", "mutants"],
        [[word or "not localised", count] for word, count in sorted(blame.items())],
    )
    return show_survivors(rows, NOTICED)


def _count(rows: Sequence[Row], **wanted: str) -> int:
    return sum(all(row[key] == value for key, value in wanted.items()) for row in rows)


def only(asked: argparse.Namespace) -> int:
    """Judge one mutant and print its report; returns 1 if it survives, else 0."""
    wanted = chosen(mutations(MODELS / MUTATED), asked.only)
    with Workplace(asked.rows, not asked.no_localize) as place:
        place.measure()
        row = place.judge(wanted, asked.places)
    print(row["report"])
    print(json.dumps({**row, "report": ""}))
    return int(row["outcome"] not in NOTICED)


def _arguments() -> argparse.Namespace:
    resume = "Judge mutants without a row, and survivors that were judged at fewer Points"
    parser = options(__doc__, "mutants.jsonl", 250, resume)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="Begin no mutant after this")
    parser.add_argument(
        "--places", type=int, default=len(PLACES), help="Points to judge a survivor at (all)"
    )
    parser.add_argument("--no-localize", action="store_true", help="Do not localise the fault")
    return parsed(parser)


if __name__ == "__main__":
    main()
