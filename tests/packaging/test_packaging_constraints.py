"""The oldest tested releases are the oldest allowed, and the pinned releases are allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


def pins(file: Path) -> dict[str, Version]:
    """The releases that a file of constraints pins, by name."""
    found: dict[str, Version] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[canonicalize_name(name)] = Version(version)
    return found


@pytest.fixture
def required(pyproject: dict[str, Any]) -> dict[str, Requirement]:
    """The requirements of an installation that tests the oldest releases, by name."""
    extras = pyproject["project"]["optional-dependencies"]
    lines = [*pyproject["project"]["dependencies"], *extras["xdist"]]
    lines += [line for line in extras["dev"] if line.startswith(("hypothesis", "syrupy"))]
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


def test_the_oldest_tested_releases_are_the_lower_bounds_of_pyproject(
    root: Path, required: dict[str, Requirement]
) -> None:
    floors = {}
    for name, requirement in required.items():
        (floor,) = requirement.specifier  # only a lower bound: no newer release is known to fail
        assert floor.operator == ">=", requirement
        floors[name] = Version(floor.version)

    assert pins(root / "constraints-oldest.txt") == floors


def test_pinned_releases_satisfy_the_requirements_of_pyproject(
    root: Path, required: dict[str, Requirement]
) -> None:
    pinned = pins(root / "constraints.txt")

    for name, requirement in required.items():
        assert pinned[name] in requirement.specifier, name


def test_the_oldest_tested_pytest_is_the_minversion_of_pytest_ini_options(
    root: Path, pyproject: dict[str, Any]
) -> None:
    minimum = Version(pyproject["tool"]["pytest"]["ini_options"]["minversion"])

    assert pins(root / "constraints-oldest.txt")["pytest"] == minimum


def test_the_usage_page_states_the_oldest_supported_releases(
    root: Path, pyproject: dict[str, Any], required: dict[str, Requirement]
) -> None:
    page = (root / "docs" / "usage.md").read_text(encoding="utf-8")

    for name in ("torch", "pytest"):
        (floor,) = required[name].specifier
        assert f"\n| {name} | {floor.version} |" in page
    python = pyproject["project"]["requires-python"].removeprefix(">=")
    lines = pyproject["project"]["classifiers"]
    newest = max(Version(line.rpartition(" ")[2]) for line in lines if ":: 3." in line)
    assert f"\n| Python | {python} | {newest} |" in page
