"""The workflows hold to what keeps them safe, and test what pyproject.toml promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = Path(__file__).resolve().parents[2] / ".github" / "workflows"
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*")

each_workflow = pytest.mark.parametrize(
    "path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name
)


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@each_workflow
def test_every_action_is_pinned_by_commit_with_its_version(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))

    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


@each_workflow
def test_a_job_may_only_read_and_does_not_run_for_ever(path: Path) -> None:
    workflow = read(path)

    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert set(job["permissions"].values()) <= {"read"}, name
        assert 0 < job["timeout-minutes"] <= 60, name


@each_workflow
def test_a_checkout_keeps_no_credentials(path: Path) -> None:
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]

    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_the_required_check_waits_for_every_other_job() -> None:
    jobs = read(WORKFLOWS / "ci.yml")["jobs"]

    assert set(jobs["required-checks"]["needs"]) == set(jobs) - {"required-checks"}
    assert jobs["required-checks"]["if"] == "always()"


def test_every_python_that_is_promised_is_tested(pyproject: dict[str, Any]) -> None:
    promised = [
        version
        for line in pyproject["project"]["classifiers"]
        if (version := line.rpartition(" :: ")[2]).startswith("3.")
    ]
    tests = read(WORKFLOWS / "ci.yml")["jobs"]["tests"]

    assert tests["strategy"]["matrix"]["python"] == promised


def test_the_oldest_pytest_that_is_promised_is_tested(pyproject: dict[str, Any]) -> None:
    [promised] = [d for d in pyproject["project"]["dependencies"] if d.startswith("pytest>=")]
    steps = read(WORKFLOWS / "ci.yml")["jobs"]["oldest-pytest"]["steps"]

    assert any(promised.replace(">=", "==") in step.get("run", "") for step in steps)
