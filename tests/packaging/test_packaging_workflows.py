"""The workflows hold to what keeps them safe, and test what pyproject.toml promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

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


def commands(job: str) -> str:
    """What a job of ci.yml runs."""
    steps = read(WORKFLOWS / "ci.yml")["jobs"][job]["steps"]
    return "\n".join(step.get("run", "") for step in steps)


@each_workflow
def test_every_job_and_every_step_has_a_name(path: Path) -> None:
    for name, job in read(path)["jobs"].items():
        assert job.get("name"), name
        assert [step for step in job["steps"] if not step.get("name")] == [], name


def test_both_ends_of_the_dependencies_are_tested_on_both_ends_of_python(
    pyproject: dict[str, Any],
) -> None:
    jobs = read(WORKFLOWS / "ci.yml")["jobs"]
    pythons = jobs["tests"]["strategy"]["matrix"]["python"]
    used = {
        end: step["with"]["python-version"]
        for end in ("oldest", "newest")
        for step in jobs[end]["steps"]
        if step.get("uses", "").startswith("actions/setup-python@")
    }

    assert used == {"oldest": pythons[0], "newest": pythons[-1]}
    assert pythons[0] in SpecifierSet(pyproject["project"]["requires-python"])
    assert "make test-oldest " in commands("oldest")
    assert "make test-newest " in commands("newest")


def test_two_ways_of_rounding_are_tested() -> None:
    job = read(WORKFLOWS / "ci.yml")["jobs"]["numerics"]
    (step,) = [step for step in job["steps"] if "make test-numerics " in step.get("run", "")]

    assert job["strategy"]["matrix"]["capability"] == ["default", "avx2"]
    assert step["env"] == {"ATEN_CPU_CAPABILITY": "${{ matrix.capability }}"}


def test_a_build_uses_nothing_that_is_not_pinned() -> None:
    said = commands("build-wheel")

    assert "pip install -c constraints.txt build setuptools" in said
    assert "python -m build --no-isolation" in said
