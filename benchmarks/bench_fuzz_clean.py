"""Fuzzes the correct reference programs: each failure is a false alarm, or a bug of a program.

Every program is a fuzz test with open axes and awkward sizes, from float64 to bfloat16, with the
default settings.  Says how many Points ran, how many per minute at each world size, and which
failed, with their whole report.

    python benchmarks/bench_fuzz_clean.py --examples 60 --seeds 0 1 2
    python benchmarks/bench_fuzz_clean.py --seeds 20260101 --examples 1000 --minutes 40
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _measure import finish, machine, show
from _recorder import Recorder

#: Axes of all programs, and sizes that divide by some of them.
COMMON: dict[str, Any] = {
    **dict.fromkeys(("tp", "cp", "dp", "sp"), ...),
    "zero": [0, 1],
    "dtype": ["float64", "float32", "bfloat16"],
    "microbatches": [2, 4, 1, 3],
    "seq_len": [8, 16, 12, 5, 1],
    "batch_size": [1, 2, 3],
    "vocabulary": [256, 64, 12],
}
ATTENTION: dict[str, Any] = {"heads": [4, 2, 1, 3], "kv_heads": [2, 4, 1], "hidden": [24, 16]}

#: The axes of each program beside the common ones.
AXES: dict[str, dict[str, Any]] = {
    "gpt": {
        **COMMON,
        "pp": ...,
        "vpp": [1, 2],
        "recompute": ["none", "selective", "full"],
        "layers": [1, 2, 3, 5],
        "heads": [4, 2, 1, 3],
        "hidden": [24, 12],
        "tied": ...,
        "bucket": [0, 100],
        "cp_method": ["all_gather", "ring"],
        "schedule": ["1f1b", "gpipe"],
    },
    "llama": {
        **COMMON,
        **ATTENTION,
        "pp": ...,
        "recompute": ["none", "selective", "full"],
        "layers": [1, 2, 3],
        "ffn": [16, 12, 2],
        "tp_overlap": ...,
        "cp_method": ["all_gather", "ring"],
    },
    "moe": {
        **COMMON,
        **ATTENTION,
        "ep": ...,
        "recompute": ["none", "selective"],
        "layers": [1, 2],
        "ffn": [16, 2],
        "experts": [4, 2, 6, 1],
        "top_k": [1, 2],
    },
}

#: Arguments that are fractions, which no axis has: those of odd seeds.
ODD: dict[str, dict[str, object]] = {
    "gpt": {"clip": 0.5},
    "llama": {"clip": 0.5},
    "moe": {"clip": 0.5, "capacity_factor": 0.5},
}

TEST = """
import json, time

import hypothesis
from pytest_trainsafe import assert_trainsafe, trainsafe_fuzz
from pytest_trainsafe.reference_models import {program}

@hypothesis.seed({seed})
@trainsafe_fuzz({program}.train, max_examples={examples}, derandomize=False, **{axes})
def test_fuzz(candidate_trace, reference_trace, point):
    began = time.time()
    if began > {until}:
        return
    verdict = "fail"
    try:
        assert_trainsafe(candidate_trace, reference_trace)
        verdict = "pass"
    finally:
        row = dict(
            program={program!r}, seed={seed}, point=str(point), ranks=point.world_size,
            dtype=str(point.dtype), verdict=verdict, seconds=time.time() - began,
        )
        with open({rows!r}, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\\n")
"""


def main() -> None:
    asked = _arguments()
    facts, until = machine(), time.time() + 60 * asked.minutes
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    asked.rows.write_text("", encoding="utf-8")
    # Without the example database: the Points are those of the seeds.
    hypothesis.settings.register_profile("benchmark", database=None, derandomize=False)
    hypothesis.settings.load_profile("benchmark")
    failed = []
    tests = [(seed, program) for seed in asked.seeds for program in asked.programs]
    for number, (seed, program) in enumerate(tests):
        # The time that is left is divided among the tests that are left.
        now = time.time()
        share = now + (until - now) / (len(tests) - number)
        error = fuzz(program, seed, asked.examples, share, asked.rows.resolve())
        if error is not None:
            failed.append((program, seed))
            print(f"{program}, seed {seed}: {error}", flush=True)
    rows = [json.loads(line) for line in asked.rows.read_text(encoding="utf-8").splitlines()]
    figures = show_rows(rows)
    print(f"\n{len(rows)} Points of {len(asked.seeds)} seeds, {len(failed)} tests failed")
    finish("fuzz_clean", facts, {"points": len(rows), "failed": failed, "figures": figures})
    sys.exit(bool(failed) or not rows)


def fuzz(program: str, seed: int, examples: int, until: float, rows: Path) -> BaseException | None:
    """Runs the fuzz test of a program in a pytest session of its own; the error, if it fails."""
    recorder = Recorder()
    words = AXES[program] | ({"args": ODD[program]} if seed % 2 else {})
    axes = "dict(" + ", ".join(f"{name}={_literal(each)}" for name, each in words.items()) + ")"
    with tempfile.TemporaryDirectory(prefix="trainsafe-fuzz-") as temporary:
        test = Path(temporary, f"test_{program}_{seed}.py")
        Path(temporary, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        text = TEST.format(
            program=program, seed=seed, examples=examples, until=until, axes=axes, rows=str(rows)
        )
        test.write_text(text, encoding="utf-8")
        options = ["-p", "no:terminal", "--trainsafe-localize=off", "--rootdir", temporary]
        status = pytest.main([*options, str(test)], plugins=[recorder])
    if status and recorder.error is None:
        return RuntimeError(f"pytest ended with {status!r}")
    return recorder.error


def show_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The tables of a run, and their figures."""
    figures: dict[str, Any] = {}
    for key in ("program", "dtype", "ranks"):
        table = []
        for value in sorted({row[key] for row in rows}):
            own = [row for row in rows if row[key] == value]
            seconds = sum(row["seconds"] for row in own)
            verdicts = Counter(row["verdict"] for row in own)
            different = len({(row["program"], row["point"]) for row in own})
            rate = 60 * len(own) / seconds if seconds else 0.0
            table.append([value, len(own), different, verdicts["fail"], f"{rate:.0f}"])
            figures[f"{key} {value}"] = {"points": len(own), "a minute": rate}
        columns = [key, "points", "different", "failed", "a minute"]
        show(f"Correct programs, fuzzed, by {key}", columns, table)
    return figures


def _literal(values: object) -> str:
    return "..." if values is ... else repr(values)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", nargs="*", choices=tuple(AXES), default=list(AXES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--examples", type=int, default=60, help="Of each program and seed")
    parser.add_argument(
        "--minutes",
        type=float,
        default=1e6,
        help="Begin no Point after these; each program and seed has an equal share",
    )
    parser.add_argument("--rows", type=Path, default=Path("build", "fuzz-clean.jsonl"))
    parser.add_argument("--quick", action="store_true", help="One seed, 5 examples each")
    asked = parser.parse_args()
    if asked.quick:
        asked.seeds, asked.examples = [0], 5
    return asked


if __name__ == "__main__":
    main()
