"""The CI workflows follow security rules, and test what pyproject.toml promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from pytest_trainsafe.sweep.plan.seconds import read_seconds, update_seconds

WORKFLOWS = Path(__file__).resolve().parents[2] / ".github" / "workflows"
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*")

each_workflow = pytest.mark.parametrize(
    "path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name
)

GUARD = "Refuse code of contributors on runners of your own"
CONTRIBUTED = "run no code of contributors"

#: The events that only people with write access cause, and that run code of the repository.
OF_WRITERS = {"push", "schedule", "workflow_dispatch", "release"}

#: The other events that GitHub documents ("Events that trigger workflows"), and an unknown one.
OF_OTHERS = (
    *("branch_protection_rule", "check_run", "check_suite", "create", "delete", "deployment"),
    *("deployment_status", "discussion", "discussion_comment", "fork", "gollum", "image_version"),
    *("issue_comment", "issues", "label", "merge_group", "milestone", "page_build", "public"),
    *("pull_request", "pull_request_review", "pull_request_review_comment", "pull_request_target"),
    *("registry_package", "repository_dispatch", "status", "watch", "workflow_call"),
    *("workflow_run", "pushed", "of_tomorrow", ""),
)

ACTION = WORKFLOWS.parents[1] / "action.yml"


def read(path: Path) -> dict[Any, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@each_workflow
def test_every_action_is_pinned_by_commit_with_its_version(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))

    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


@each_workflow
def test_every_job_has_read_only_permissions_and_a_time_limit(path: Path) -> None:
    workflow = read(path)

    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert set(job["permissions"].values()) <= {"read"}, name
        limit = job["timeout-minutes"]
        if limit == "${{ inputs.minutes }}":
            limit = workflow[True]["workflow_call"]["inputs"]["minutes"]["default"]
        assert 0 < limit <= 60, name


@each_workflow
def test_pull_requests_run_only_on_github_hosted_runners(path: Path) -> None:
    workflow = read(path)
    triggers = set(workflow[True])  # YAML 1.1 reads the key `on` as true

    assert triggers <= OF_WRITERS | {"pull_request", "workflow_call"}
    for name, job in workflow["jobs"].items():
        if job["runs-on"] != "ubuntu-latest":
            assert triggers <= OF_WRITERS | {"workflow_call"}, name
            assert job["environment"], name


@each_workflow
def test_no_script_contains_a_workflow_expression(path: Path) -> None:
    for job in read(path)["jobs"].values():
        assert [s["run"] for s in job["steps"] if "${{" in s.get("run", "")] == []


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


def test_every_python_version_of_the_classifiers_is_tested(pyproject: dict[str, Any]) -> None:
    promised = [
        version
        for line in pyproject["project"]["classifiers"]
        if (version := line.rpartition(" :: ")[2]).startswith("3.")
    ]
    tests = read(WORKFLOWS / "ci.yml")["jobs"]["tests"]

    assert tests["strategy"]["matrix"]["python"] == promised


def commands(job: str) -> str:
    """The scripts of a job of ci.yml."""
    steps = read(WORKFLOWS / "ci.yml")["jobs"][job]["steps"]
    return "\n".join(step.get("run", "") for step in steps)


@each_workflow
def test_every_job_and_every_step_has_a_name(path: Path) -> None:
    for name, job in read(path)["jobs"].items():
        assert job.get("name"), name
        assert [step for step in job["steps"] if not step.get("name")] == [], name


def test_oldest_and_newest_dependencies_are_tested_on_oldest_and_newest_python(
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


def test_two_cpu_capabilities_which_round_differently_are_tested() -> None:
    job = read(WORKFLOWS / "ci.yml")["jobs"]["numerics"]
    (step,) = [step for step in job["steps"] if "make test-numerics " in step.get("run", "")]

    assert job["strategy"]["matrix"]["capability"] == ["default", "avx2"]
    assert step["env"] == {"ATEN_CPU_CAPABILITY": "${{ matrix.capability }}"}


def test_a_wheel_is_built_with_pinned_tools_without_isolation() -> None:
    scripts = commands("build-wheel")

    assert "pip install -c constraints.txt build setuptools" in scripts
    assert "python -m build --no-isolation" in scripts


def step(path: Path, name: str) -> dict[str, Any]:
    """The first step of this name in a workflow, or in the composite action."""
    content = read(path)
    jobs = content["jobs"].values() if "jobs" in content else [content["runs"]]
    found: dict[str, Any] = next(s for job in jobs for s in job["steps"] if s["name"] == name)
    return found


def bash(script: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as a runner of GitHub does."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={"PATH": os.environ["PATH"]} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("labels", "event", "environment", "ephemeral", "refused"),
    [
        *(('["self-hosted"]', event, "gpu", "false", "") for event in sorted(OF_WRITERS)),
        *(('["self-hosted"]', event, "gpu", "false", CONTRIBUTED) for event in OF_OTHERS),
        ('"ubuntu-latest"', "pull_request", "", "false", ""),
        ('"ubuntu-24.04-arm"', "pull_request", "", "false", ""),
        ('["self-hosted", "gpu"]', "push", "", "false", "need the input 'environment'"),
        ('["self-hosted", "gpu"]', "push", "gpu", "false", ""),
        ('["self-hosted", "gpu"]', "pull_request", "gpu", "false", CONTRIBUTED),
        ('"gpu"', "pull_request_target", "gpu", "false", CONTRIBUTED),
        ('"ubuntu-latest-gpu"', "pull_request", "gpu", "false", CONTRIBUTED),
        ('["ubuntu-latest"]', "pull_request", "", "false", "need the input 'environment'"),
        ('["self-hosted", "gpu"]', "pull_request", "gpu", "true", ""),
    ],
)
def test_the_reusable_workflow_guards_self_hosted_runners(
    labels: str, event: str, environment: str, ephemeral: str, refused: str, tmp_path: Path
) -> None:
    guard = step(WORKFLOWS / "trainsafe.yml", GUARD)

    done = bash(
        guard["run"],
        tmp_path,
        RUNNER_LABELS=labels,
        EVENT=event,
        ENVIRONMENT=environment,
        EPHEMERAL=ephemeral,
        REF="refs/heads/main",
    )

    assert done.returncode == bool(refused)
    assert refused in done.stdout
    jobs = read(WORKFLOWS / "trainsafe.yml")["jobs"]
    assert (jobs["plan"]["needs"], jobs["shard"]["needs"]) == ("guard", "plan")


@pytest.mark.parametrize(
    ("ref", "refused"),
    [
        ("refs/heads/main", False),
        ("refs/heads/queue/pr-1", False),
        ("refs/tags/v1", False),
        ("refs/heads/gh-readonly-queue/main/pr-1-0a1b", True),
        ("refs/pull/1/merge", True),
    ],
)
def test_the_guard_refuses_branches_that_hold_pull_requests(
    ref: str, refused: bool, tmp_path: Path
) -> None:
    given = {"RUNNER_LABELS": '"gpu"', "ENVIRONMENT": "gpu", "EVENT": "push", "REF": ref}
    script = step(WORKFLOWS / "trainsafe.yml", GUARD)["run"]

    assert bash(script, tmp_path, **given, EPHEMERAL="false").returncode == refused
    assert bash(script, tmp_path, **given, EPHEMERAL="true").returncode == 0


def test_the_guard_reads_the_event_and_the_branch_of_the_caller() -> None:
    given = step(WORKFLOWS / "trainsafe.yml", GUARD)["env"]

    assert (given["EVENT"], given["REF"]) == ("${{ github.event_name }}", "${{ github.ref }}")


def test_the_seconds_of_all_shards_are_merged_and_a_missing_shard_is_an_error(
    tmp_path: Path,
) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    for number in (1, 2):
        folder = tmp_path / "results" / f"shard-{number}"
        folder.mkdir(parents=True)
        update_seconds(folder, {f"t[{number}]": float(number)})
        (folder / "junit.xml").write_text("<x/>")
    workflow = WORKFLOWS / "trainsafe.yml"

    merged = bash(step(workflow, "Merge seconds and examples")["run"], tmp_path)
    assert merged.returncode == 0, merged.stderr
    folder = tmp_path / ".trainsafe-cache" / "d" / "trainsafe"
    assert read_seconds(folder) == {"t[1]": 1.0, "t[2]": 2.0}

    check = step(workflow, "Fail unless every shard has results")["run"]
    assert bash(check, tmp_path, COUNT="2").returncode == 0
    failed = bash(check, tmp_path, COUNT="3")
    assert (failed.returncode, failed.stdout) == (
        1,
        "::error title=trainsafe::shard 3 of 3 has no results\n",
    )


def test_the_action_runs_a_shard_with_arguments_split_as_by_a_shell(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "python"
    fake.write_text(
        f'#!/bin/bash\nif [[ $1 == -c ]]; then exec {sys.executable} "$@"; fi\n'
        "printf '%s\\n' \"$@\"\n"
    )
    fake.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    done = bash(
        step(ACTION, "Test")["run"],
        tmp_path,
        PATH=path,
        GITHUB_WORKSPACE="/w",
        GITHUB_OUTPUT=str(tmp_path / "output"),
        ARGUMENTS="""tests -k 'tp2 and cp2; $(exit 3)'""",
        SHARD="2/4",
        PLAN="plan.json",
        MINUTES="50",
        NAME="gpt",
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_text() == "number=2\n"
    assert done.stdout.splitlines() == [
        *("-m", "pytest", "tests", "-k", "tp2 and cp2; $(exit 3)"),
        *("--trainsafe-shard", "2/4", "--trainsafe-from-plan", "plan.json"),
        *("-o", "cache_dir=/w/.trainsafe-cache", "--junitxml=trainsafe-results/gpt-2.xml"),
    ]


def test_the_composite_action_pins_actions_and_has_no_expression_in_scripts() -> None:
    used = re.findall(r"uses: (.*)", ACTION.read_text(encoding="utf-8"))

    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []
    steps = read(ACTION)["runs"]["steps"]
    assert [s["name"] for s in steps if "${{" in s.get("run", "")] == []
