"""Helpers of the third-party tests: the required packages, and functions that judge and report."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure

PACKAGES = ("accelerate", "lightning", "torchtitan", "transformers", "triton")

_MISSING = [name for name in PACKAGES if find_spec(name) is None]

needs_packages = pytest.mark.skipif(
    bool(_MISSING),
    reason=f"{', '.join(_MISSING)} not installed: run `make test-third-party`, or "
    "pip install -r tests/third_party/requirements.txt",
)


def judge(candidate: Any, reference: Any, **arguments: Any) -> None:
    """Judge the candidate with additional arguments, which the reference does not get."""
    given = {**candidate.case.candidate_arguments, **arguments}
    candidate.case = replace(candidate.case, candidate_arguments=given)
    assert_trainsafe(candidate, reference)


def failure(candidate: Any, reference: Any, **arguments: Any) -> str:
    """The report of a candidate that must fail, with its line breaks."""
    with pytest.raises(TrainsafeFailure) as failed:
        judge(candidate, reference, **arguments)
    return str(failed.value)


def flat(text: str) -> str:
    """A report without line breaks and margins."""
    return " ".join(text.split())


def line_of(program: ModuleType, text: str) -> str:
    """`file.py:number` of the one line of a program that is this text, without its comment."""
    assert program.__file__ is not None
    file = Path(program.__file__)
    read = file.read_text(encoding="utf-8").splitlines()
    lines = [line.partition("  #")[0].strip() for line in read]
    assert lines.count(text) == 1, (text, lines.count(text))
    return f"{file.name}:{lines.index(text) + 1}"


def starts(report: str, first: str, *phrases: str) -> str:
    """Check a report's first wrong tensor and phrases; return the line named in `look at`."""
    text = flat(report)
    assert f"starts at {first} " in text, report
    for each in phrases:
        assert each in text, report
    return Path(_place(report)).name


def code_at(report: str) -> tuple[str, str]:
    """The file name and the source line that a report names in `look at`."""
    file, _, number = _place(report).rpartition(":")
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return Path(file).name, lines[int(number) - 1].strip()


def _place(report: str) -> str:
    rows = [line for line in report.splitlines() if line.startswith("  look at ")]
    assert len(rows) == 1, report
    return rows[0].split()[2]


def suggested(report: str) -> dict[str, Any]:
    """The annotations that a report suggests, as a user would copy them."""
    assert "with these annotations, every tensor matches its reference" in flat(report), report
    lines = iter(report.splitlines())
    next(line for line in lines if line.lstrip().startswith("annotate "))
    copied = []
    for line in lines:
        if line.lstrip().startswith("because "):
            break
        copied.append(line)
    while not copied[0].rstrip().endswith((":", "}")):
        del copied[0]
    found: dict[str, Any] = yaml.safe_load(textwrap.dedent("\n".join(copied)))
    return found
