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
from _mutant_rows import chosen, options, parsed, read, show_survivors
from _mutants import Mutation, mutations_of, sample

Row = dict[str, Any]

PACKAGE = ROOT / "pytest_trainsafe"

_TENSOR = "judges/compare/test_compare_tensor.py"
_TOLERANCE = "judges/compare/test_compare_tolerance.py"

#: The mutated files, and the tests of each that run first: what decides whether a tensor is wrong,
#: and which known error it looks like.
MUTATED: Mapping[str, tuple[str, ...]] = {
    "align/merge.py": ("align/test_align_merge.py",),
    "judges/compare/tensors/errors.py": (_TENSOR, "judges/compare/test_compare_odd_tensors.py"),
    "judges/compare/tensors/tensor.py": (_TENSOR, "judges/compare/test_compare_odd_tensors.py"),
    "judges/compare/tensors/allowance.py": (_TOLERANCE, _TENSOR),
    "judges/compare/tolerance/gradient_norm.py": ("judges/compare/test_compare_gradient_norm.py",),
    "judges/loosen.py": (_TOLERANCE,),
    "judges/compare/tolerance/reference_tolerances.py": (_TOLERANCE,),
    "judges/compare/tolerance/resample.py": ("judges/compare/test_compare_resample.py",),
    **{
        f"judges/compare/patterns/{name}.py": ("judges/compare/test_compare_patterns.py",)
        for name in (
            *("catalogue", "mask", "microbatches", "narrow", "partial_sum", "rows", "scale"),
            *("shard", "stale", "uneven", "zero"),
        )
    },
}

#: The tests that must notice a mutant. They start no ranks.
TESTS = ("judges/compare", "align")

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


def run(asked: argparse.Namespace, drawn: Sequence[Mutation]) -> None:
    """Run the tests on the drawn mutants that have no row yet, `--jobs` at once.

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
            copy = Copy.mutated(Path(folder) / f"mutant{number}", mutation)
            outcome, taken, text = copy.judged(mutation.file, int(PATIENCE * seconds) + 1)
            shutil.rmtree(copy.folder)
            named = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
            row = {"id": mutation.id, "file": mutation.file, "kind": mutation.kind}
            return {**row, "outcome": outcome, "by": named[:1], "seconds": round(taken, 1)}

        left = [mutation for mutation in drawn if mutation.id not in done]
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

    @classmethod
    def mutated(cls, folder: Path, mutation: Mutation) -> Copy:
        """A copy with one mutation."""
        copy = cls(folder)
        original = (PACKAGE / mutation.file).read_text(encoding="utf-8")
        copy.write(mutation.file, mutation.applied(original))
        return copy

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
        # The copy comes before the package beside the tests, in the ranks too.
        command += ["-o", f"pythonpath={self.folder} {ROOT}"]
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
    outcomes = sorted({row["outcome"] for row in rows})
    counts = Counter((row["file"], row["outcome"]) for row in rows)
    table = [
        [file, *(counts[file, each] for each in outcomes)]
        for file in MUTATED
        if any(counts[file, each] for each in outcomes)
    ]
    table.append(["all", *(sum(row["outcome"] == each for row in rows) for each in outcomes)])
    show("Mutants of the comparison", ["", *outcomes], table)
    return show_survivors(rows, NOTICED)


def only(id: str, found: Sequence[Mutation]) -> int:
    """Test one mutant and print pytest's output; returns 1 if it survives, else 0."""
    mutation = chosen(found, id)
    with tempfile.TemporaryDirectory(prefix="trainsafe-own-mutants-") as folder:
        copy = Copy.mutated(Path(folder) / "mutant", mutation)
        outcome, _, text = copy.judged(mutation.file)
    print(text)
    return int(outcome not in NOTICED)


def _arguments() -> argparse.Namespace:
    return parsed(options(__doc__, "own_mutants.jsonl", 100, "Only test mutants without a row"))


if __name__ == "__main__":
    main()
