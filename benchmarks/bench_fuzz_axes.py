"""Fuzzes fifteen bugs that need two or three axes, and checks each sentence on axes.

A report names the axes that a failure needs.  It is right if they are those of the case, with or
without conditions that the rules of valid Points add.  Cases without a fault must pass, and a
flaky bug must be named as flaky.  All of them take some forty minutes on two cores:

    python benchmarks/bench_fuzz_axes.py
    python benchmarks/bench_fuzz_axes.py --only vocab-tied-twice
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _measure import finish, machine, show
from _recorder import Recorder

from pytest_trainsafe.fuzz.failure import FuzzFailure
from pytest_trainsafe.report.interaction import interaction_text

FOLDER = Path(__file__).with_name("axis_bugs")
sys.path.insert(0, str(FOLDER))

from axes_cases import CASES, Bug, Case  # noqa: E402

TEST = """
import sys
sys.path.insert(0, {folder!r})
from pytest_trainsafe import assert_trainsafe, trainsafe_fuzz
from {module} import train

@trainsafe_fuzz(train, max_examples={examples}, max_world_size=4, **{keywords!r})
def test_fuzz(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="CASE")
    parser.add_argument("--examples", type=int, default=30)
    asked = parser.parse_args()
    facts = machine()
    hypothesis.settings.register_profile("benchmark", database=None)
    hypothesis.settings.load_profile("benchmark")
    table, wrong = [], []
    for case in CASES:
        if asked.only and case.name not in asked.only:
            continue
        began = time.perf_counter()
        error = fuzz(case, asked.examples)
        right, said = verdict(case, error)
        table.append([case.name, f"{time.perf_counter() - began:.0f}", said, right or "NO"])
        print(*table[-1], sep=" | ", flush=True)
        if not right:
            wrong.append(case.name)
            print("\n".join(str(error).splitlines()[:12]), flush=True)
    show("Bugs that need two or three axes", ["", "seconds", "report", "right"], table)
    finish("fuzz_axes", facts, {"cases": len(table), "wrong": wrong})
    sys.exit(bool(wrong))


def fuzz(case: Case, examples: int) -> BaseException | None:
    """The error with which a fuzz test of the case ends, in a new pytest session; None for none."""
    keywords: dict[str, Any] = {**case.axes, "candidate_args": {"fault": case.fault}}
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="trainsafe-fuzz-") as temporary:
        test = Path(temporary, f"test_{case.name.replace('-', '_')}.py")
        Path(temporary, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        text = TEST.format(
            folder=str(FOLDER), module=case.module, examples=examples, keywords=keywords
        )
        test.write_text(text, encoding="utf-8")
        words = ["-p", "no:terminal", "--trainsafe-localize=off", "--rootdir", temporary]
        pytest.main([*words, str(test)], plugins=[recorder])
    error: BaseException | None = recorder.error
    return error


def verdict(case: Case, error: BaseException | None) -> tuple[str, str]:
    """Whether the end of a fuzz test is right ("" if not), and what it says."""
    if not case.fault:
        return ("yes" if error is None else ""), "passes" if error is None else type(error).__name__
    if case.flaky:
        flaky = error is not None and "flaky" in (type(error).__name__ + str(error)).lower()
        return ("yes" if flaky else ""), type(error).__name__ if error else "passes"
    if not isinstance(error, FuzzFailure):
        return "", type(error).__name__ if error is not None else "passes"
    said = interaction_text(error.interaction)
    needed = {need.axis for need in error.interaction.needs}
    # At another value of such an axis the test ends in another way: whether the same failure would
    # occur there is not known, and the report says so.
    other = {
        effect.axis
        for effect in error.interaction.effects
        if not effect.needed and not effect.independent and not effect.implied
    }
    right = any(_names(needed, other, bug) for bug in case.causes)
    return ("yes" if right else ""), f"{error.examples} examples: {said}"


def _names(needed: set[str], other: set[str], bug: Bug) -> bool:
    return {*bug.needs} <= needed | other and needed <= {*bug.needs, *bug.implied}


if __name__ == "__main__":
    main()
