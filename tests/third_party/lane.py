"""What the tests of the lane share: the packages that they need, and how candidates are judged."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from importlib.util import find_spec
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
    """Judge the candidate with further arguments, which the reference is not given."""
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


def offered(report: str) -> dict[str, Any]:
    """The annotations that a report offers, as a user would copy them."""
    assert "with what follows all tensors fit their reference" in flat(report), report
    lines = iter(report.splitlines())
    next(line for line in lines if line.lstrip().startswith("annotate "))
    copied = []
    for line in lines:
        if line.lstrip().startswith("add this to"):
            break
        copied.append(line)
    while not copied[0].rstrip().endswith((":", "}")):
        del copied[0]
    found: dict[str, Any] = yaml.safe_load(textwrap.dedent("\n".join(copied)))
    return found
