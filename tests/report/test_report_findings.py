"""The Findings of a failed test reach the process that reports, as data."""

from __future__ import annotations

import json

import pytest

CONFTEST = """
import json

def pytest_runtest_logreport(report):
    found = getattr(report, "trainsafe_findings", None)
    if found is not None:
        with open("findings.jsonl", "a") as file:
            file.write(json.dumps([report.nodeid, found]) + "\\n")
"""

TESTS = """
import pytest
from pytest_trainsafe import TrainsafeFailure
from pytest_trainsafe.core.finding import Finding, Mismatch
from pytest_trainsafe.core.tensor_id import TensorId

def finding(number):
    return Finding(
        verdict="fail", judge="compare", check="value", message=f"finding {number}",
        where=TensorId(0, None, "main_grad", f"layers.{number}", "weight"), error=float("inf"),
        mismatch=Mismatch(
            elements=4, differing=1, threshold=0.0, difference=2.0, index=(1, 0),
            value=complex(1, 2), expected=float("nan"),
        ),
    )

@pytest.mark.parametrize("count", [1, 250])
def test_fails(count):
    raise TrainsafeFailure("report", [finding(number) for number in range(count)])

def test_passes():
    pass

def test_fails_otherwise():
    assert False
"""


@pytest.mark.parametrize("options", [[], ["-n", "1"]])
def test_findings_are_data_in_the_process_that_reports(
    pytester: pytest.Pytester, without_hypothesis: None, options: list[str]
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)

    pytester.runpytest_inprocess(*options).assert_outcomes(failed=3, passed=1)

    lines = (pytester.path / "findings.jsonl").read_text().splitlines()
    found = {nodeid.rpartition("::")[2]: findings for nodeid, findings in map(json.loads, lines)}
    assert sorted(found) == ["test_fails[1]", "test_fails[250]"]
    [one] = found["test_fails[1]"]
    assert one["where"]["module"] == "layers.0"
    assert one["mismatch"]["value"] == "(1+2j)"
    assert one["message"] == "finding 0"
    assert len(found["test_fails[250]"]) == 200
