"""The bugs of the exam of exact numbers are those that programs document, and change results."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from exact_cases import Case

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FOLDER = BENCHMARKS / "exact_exam"


@pytest.fixture(autouse=True)
def exam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def documented(module: str) -> set[str]:
    """The bugs in the docstring of a program."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    docstring = Path(spec.origin).read_text().split('"""')[1]
    return set(re.findall(r'^- "(\w+)"', docstring, re.MULTILINE))


def checked(*programs: str) -> list[str]:
    """The names of cases that are wrong as items of the exam."""
    command = [sys.executable, "-W", "ignore", "bench_exact_exam.py", "--check", "--only"]
    done = subprocess.run([*command, *programs], cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wrong: list[str] = json.loads(done.stdout.splitlines()[-1])["wrong"]
    return wrong


def test_every_documented_bug_is_a_case():
    from exact_cases import CASES

    tables: dict[str, set[str]] = {}
    for case in CASES:
        tables.setdefault(case.module, set()).add(case.bug)
    assert tables == {module: documented(module) for module in tables}
    programs = {path.stem for path in FOLDER.glob("exact_*.py")}
    assert set(tables) == programs - {"exact_cases", "exact_plain"}


def test_names_are_unique():
    from exact_cases import CASES, TWINS

    def names(cases: list[Case], twins: list[Case]) -> list[str]:
        return [case.name for case in cases] + [case.twin for case in twins]

    assert len(set(names(CASES, TWINS))) == len(CASES) + len(TWINS)


@pytest.mark.slow
def test_all_bugs_change_the_function_and_no_twin_does():
    assert checked("") == []
