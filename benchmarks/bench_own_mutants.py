"""Mutates the comparison itself, one change at a time: the unit tests must notice every mutant.

Mutated are the tolerances, the relative error, the merge of shards and the patterns of errors.
Each mutant is a copy of the package with one changed file, on which the unit tests of comparison
and alignment run until one fails.

    python benchmarks/bench_own_mutants.py --sample 100 --seed 0 --jobs 2
    python benchmarks/bench_own_mutants.py --resume     # goes on where it stopped
    python benchmarks/bench_own_mutants.py --show       # the tables of the rows that exist
    python benchmarks/bench_own_mutants.py --only 'errors.py relative_error: ...'   # prints pytest

A mutant on which all tests pass must be argued in docs/mutants.md. The exit status is 0 if every
such mutant is.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _measure import ROOT, finish, machine, show
from _mutant_rows import argued, read
from _mutants import Mutation, mutations_of, sample

Row = dict[str, Any]

PACKAGE = ROOT / "pytest_trainsafe"

_TENSOR = "judge/compare/test_compare_tensor.py"
_TOLERANCE = "judge/compare/test_compare_tolerance.py"

#: The mutated files, and the tests of each that run first: what decides whether a tensor is wrong,
#: and which known error it looks like.
MUTATED: Mapping[str, tuple[str, ...]] = {
    "align/merge.py": ("align/test_align_merge.py",),
    "judge/compare/errors.py": (_TENSOR, "judge/compare/test_compare_odd_tensors.py"),
    "judge/compare/tensor.py": (_TENSOR, "judge/compare/test_compare_odd_tensors.py"),
    "judge/compare/tolerance/allowance.py": (_TOLERANCE, _TENSOR),
    "judge/compare/tolerance/gradient_norm.py": ("judge/compare/test_compare_gradient_norm.py",),
    "judge/compare/tolerance/loosen.py": (_TOLERANCE,),
    "judge/compare/tolerance/reference_tolerances.py": (_TOLERANCE,),
    "judge/compare/tolerance/resample.py": ("judge/compare/test_compare_resample.py",),
    **{
        f"judge/compare/patterns/{name}.py": ("judge/compare/test_compare_patterns.py",)
        for name in (
            *("catalogue", "mask", "microbatches", "narrow", "partial_sum", "rows", "scale"),
            *("shard", "stale", "uneven", "zero"),
        )
    },
}

#: The tests that must notice a mutant. They start no ranks.
TESTS = ("judge/compare", "align")

#: A mutant is hung if its tests take this many times the CPU time of the unchanged package's.
PATIENCE = 4.0

#: And after this many seconds of any kind, for tests that wait for nothing.
LONGEST = 3600.0

NOTICED = ("failed", "hung")


def main() -> None:
    asked = _arguments()
    found = every_mutation()
    if asked.only:
        sys.exit(only(asked.only, found))
    facts, began = machine(), time.perf_counter()
    if not asked.show:
        run(asked, sample(found, asked.sample, asked.seed))
        print(f"{time.perf_counter() - began:.0f} s; rows: {asked.rows}")
    rows = read(asked.rows)
    if not rows:
        raise SystemExit(f"there are no rows in {asked.rows}")
    unexplained = show_rows(rows)
    outcomes = Counter(row["outcome"] for row in rows)
    finish("own_mutants", facts, {"mutants": len(rows), "outcomes": outcomes})
    sys.exit(bool(unexplained))


def every_mutation() -> list[Mutation]:
    """Every mutation of the files in `MUTATED`."""
    return [
        mutation
        for file in MUTATED
        for mutation in mutations_of((PACKAGE / file).read_text(encoding="utf-8"), file)
    ]


def run(asked: argparse.Namespace, chosen: Sequence[Mutation]) -> None:
    """Run the tests on the chosen mutants that have no row yet, `--jobs` at once.

    Raises SystemExit unless the tests pass on an unchanged copy, and fail on a copy in which a
    mutated file cannot be imported: only then do they test the copy.
    """
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    if not asked.resume:
        asked.rows.write_text("")
    done = {row["id"] for row in read(asked.rows)}
    with tempfile.TemporaryDirectory(prefix="trainsafe-own-mutants-") as folder:
        clean = Copy(Path(folder) / "clean")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        outcome, _, text = clean.test(TESTS)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if outcome != "survived":
            raise SystemExit(f"the tests fail on the unchanged package:\n{text}")
        broken = Copy(Path(folder) / "broken")
        broken.write(next(iter(MUTATED)), "raise RuntimeError('this file is not imported')\n")
        if broken.test(TESTS)[0] != "failed":
            raise SystemExit("the tests do not import the copy of the package")

        def judge(pair: tuple[int, Mutation]) -> Row:
            number, mutation = pair
            copy = Copy(Path(folder) / f"mutant{number}")
            original = (PACKAGE / mutation.file).read_text(encoding="utf-8")
            copy.write(mutation.file, mutation.applied(original))
            outcome, taken, text = copy.judged(mutation.file, int(PATIENCE * seconds) + 1)
            shutil.rmtree(copy.folder)
            named = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
            row = {"id": mutation.id, "file": mutation.file, "kind": mutation.kind}
            return {**row, "outcome": outcome, "by": named[:1], "seconds": round(taken, 1)}

        left = [mutation for mutation in chosen if mutation.id not in done]
        with ThreadPoolExecutor(asked.jobs) as pool, open(asked.rows, "a", encoding="utf-8") as out:
            for row in pool.map(judge, enumerate(left)):
                out.write(json.dumps(row) + "\n")
                out.flush()
                print(f"{row['outcome']:9} {row['seconds']:6.1f} s  {row['id']}", file=sys.stderr)


class Copy:
    """A copy of the package in a folder that the tests' process imports it from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=ignored)

    def write(self, file: str, text: str) -> None:
        """Replace the text of a file of the package."""
        (self.folder / PACKAGE.name / file).write_text(text, encoding="utf-8")

    def judged(self, file: str, cpu: int = resource.RLIM_INFINITY) -> tuple[str, float, str]:
        """As `test`, with the tests of a mutated file first, and then with all."""
        found = self.test(MUTATED[file], cpu)
        if found[0] != "survived":
            return found
        outcome, seconds, text = self.test(TESTS, cpu)
        return outcome, found[1] + seconds, text

    def test(
        self, tests: Sequence[str], cpu: int = resource.RLIM_INFINITY
    ) -> tuple[str, float, str]:
        """Run tests until one fails: the outcome, the seconds, and the output of pytest.

        The outcome is "survived" if all pass, "failed", or "hung" if they use more than `cpu`
        seconds of CPU time, or take too long.
        """
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        pytest = str(Path(sys.executable).with_name("pytest"))
        command = [pytest, "-x", "-q", "-p", "no:cacheprovider", "--tb=short"]
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, *(f"tests/{each}" for each in tests)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LONGEST,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu)),
            )
        except subprocess.TimeoutExpired:
            return "hung", time.perf_counter() - began, ""
        outcomes = {0: "survived", -signal.SIGXCPU: "hung", -signal.SIGKILL: "hung"}
        return outcomes.get(done.returncode, "failed"), time.perf_counter() - began, done.stdout


def show_rows(rows: Sequence[Row]) -> list[str]:
    """Print the tables, and return the ids of the survivors without an argument."""
    arguments = argued()
    outcomes = sorted({row["outcome"] for row in rows})
    counts = Counter((row["file"], row["outcome"]) for row in rows)
    table = [
        [file, *(counts[file, each] for each in outcomes)]
        for file in MUTATED
        if any(counts[file, each] for each in outcomes)
    ]
    table.append(["all", *(sum(row["outcome"] == each for row in rows) for each in outcomes)])
    show("Mutants of the comparison", ["", *outcomes], table)
    survivors = [row["id"] for row in rows if row["outcome"] not in NOTICED]
    unexplained = [id for id in survivors if id not in arguments]
    classes = Counter(arguments[id] for id in survivors if id in arguments)
    show("Survivors, by what docs/mutants.md says", ["", "mutants"], sorted(classes.items()))
    for id in unexplained:
        print(f"  SURVIVED, no argument: {id}")
    print(f"\n{len(rows)} mutants, {len(survivors)} survived, {len(unexplained)} unexplained")
    return unexplained


def only(id: str, found: Sequence[Mutation]) -> int:
    """Test one mutant and print pytest's output; returns 1 if it survives, else 0."""
    wanted = [mutation for mutation in found if mutation.id == id]
    if not wanted:
        raise SystemExit(f"there is no mutation {id!r}; give the id of one, as in the rows")
    (mutation,) = wanted
    with tempfile.TemporaryDirectory(prefix="trainsafe-own-mutants-") as folder:
        copy = Copy(Path(folder) / "mutant")
        original = (PACKAGE / mutation.file).read_text(encoding="utf-8")
        copy.write(mutation.file, mutation.applied(original))
        outcome, _, text = copy.judged(mutation.file)
    print(text)
    return int(outcome not in NOTICED)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="A sample of 20")
    parser.add_argument("--sample", type=int, default=100, help="How many mutants (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    rows = ROOT / "build" / "own_mutants.jsonl"
    parser.add_argument("--rows", type=Path, default=rows, help="Where the rows are kept")
    parser.add_argument("--resume", action="store_true", help="Only test mutants without a row")
    parser.add_argument("--show", action="store_true", help="Only print the tables of the rows")
    parser.add_argument("--only", metavar="ID", help="Test one mutant and print pytest's output")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    if asked.quick:
        asked.sample = min(asked.sample, 20)
    return asked


if __name__ == "__main__":
    main()
