"""A wheel contains the files of the package, and works outside of the repository."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., str]
Checkout = Callable[[Path], Path]

PROGRAM = "pytest_trainsafe.reference_models.gpt:train"


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_contains_exactly_the_files_of_the_package(
    names: set[str], shipped: set[str]
) -> None:
    code = {name for name in names if ".dist-info/" not in name}

    assert code == shipped
    assert "pytest_trainsafe/py.typed" in code
    assert "pytest_trainsafe/reference_models/gpt.yaml" in code
    assert "pytest_trainsafe/invariants/pytorch.pack" in code


def test_a_source_distribution_builds_the_same_wheel(
    run: Run, checkout: Checkout, wheel: Path, tmp_path: Path
) -> None:
    # Without an option, `build` makes the wheel from the source distribution that it has made.
    run(sys.executable, "-m", "build", "--no-isolation", cwd=checkout(tmp_path / "source"))
    (again,) = (tmp_path / "source" / "dist").glob("*.whl")

    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert [name for name in one.namelist() if one.read(name) != other.read(name)] == []


def test_a_checkout_without_links_builds_nothing_and_says_why(
    checkout: Checkout, tmp_path: Path
) -> None:
    folder = checkout(tmp_path / "source")
    link = folder / "pytest_trainsafe" / "invariants"
    link.unlink()
    link.write_text("../invariants")  # as git writes it with core.symlinks=false

    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert built.returncode
    assert "pytest_trainsafe/invariants is not a link" in built.stdout + built.stderr
    assert "git config core.symlinks true" in built.stdout + built.stderr


def test_a_wheel_has_one_top_level_package(names: set[str]) -> None:
    top = {name.partition("/")[0] for name in names}

    assert {name for name in top if not name.endswith(".dist-info")} == {"pytest_trainsafe"}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(metadata).decode())


def relative_or_broken(page: str, home: str, root: Path) -> list[str]:
    """The links of a page that are not absolute, or name nothing in the repository."""
    in_repository = re.compile(rf"{re.escape(home)}/(?:blob|raw)/v[\d.]+/([^#]+)")
    return [
        target
        for target in re.findall(r"\]\(([^)]+)\)", page)
        if not target.startswith(("https://", "#"))
        or ((file := in_repository.match(target)) and not (root / file[1]).exists())
    ]


def test_the_page_on_pypi_has_absolute_links_to_files_of_this_version(
    wheel: Path, root: Path, pyproject: dict[str, Any]
) -> None:
    described = metadata_of(wheel)
    project = pyproject["project"]
    home = project["urls"]["Homepage"]
    page = str(described.get_payload())

    assert described["Description-Content-Type"] == "text/markdown"
    assert f"{home}/blob/v{project['version']}/docs/usage.md#supported-releases" in page
    assert relative_or_broken(page, home, root) == []


@pytest.mark.parametrize(
    "target",
    ["docs/usage.md", "https://h.org/p/blob/v1.0/docs/lost.md", "https://h.org/p/raw/v1/x"],
)
def test_a_relative_link_and_one_to_a_file_that_is_not_there_are_found(
    root: Path, target: str
) -> None:
    page = f"[kept](https://h.org/p/blob/v1.0/docs/usage.md#a) ![x](https://a.org) [{0}]({target})"

    assert relative_or_broken(page, "https://h.org/p", root) == [target]


def test_a_wheel_names_the_pages_of_the_project(wheel: Path, pyproject: dict[str, Any]) -> None:
    given = metadata_of(wheel).get_all("Project-URL") or []
    urls = pyproject["project"]["urls"]

    assert dict(line.split(", ") for line in given) == urls
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())


def test_a_wheel_registers_the_plugin_and_contains_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [entry_points] = (n for n in archive.namelist() if n.endswith("/entry_points.txt"))
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
        registered = archive.read(entry_points).decode()

    assert registered.split() == [*("[pytest11]", "trainsafe", "=", "pytest_trainsafe.plugin")]
    assert metadata_of(wheel)["License-Expression"] == "Apache-2.0"


def test_every_package_is_imported_from_the_installed_wheel(
    run: Run, site: Path, tmp_path: Path, packages: list[str]
) -> None:
    modules = [*packages, "pytest_trainsafe.fixtures.core", "pytest_trainsafe.reference_models.gpt"]
    script = (
        "import importlib, json, sys; "
        "print(json.dumps([importlib.import_module(n).__file__ for n in sys.argv[1:]]))"
    )

    # -P: the working directory is not searched.  An editable installation in this environment would
    # supply modules that the wheel lacks, so the test compares paths.
    printed = run(sys.executable, "-P", "-c", script, *modules, cwd=tmp_path, PYTHONPATH=str(site))

    files = [Path(file) for file in json.loads(printed)]
    assert len(files) == len(modules)
    assert [file for file in files if not file.is_relative_to(site)] == []


def test_the_plugin_of_an_installed_wheel_collects_a_sweep(
    run: Run, site: Path, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:hypothesispytest\n")
    (tmp_path / "conftest.py").write_text(
        "import pytest_trainsafe\n"
        "def pytest_report_header():\n"
        "    return 'imported from ' + pytest_trainsafe.__file__\n"
    )
    (tmp_path / "test_sweep.py").write_text(
        "import pytest\n"
        f"@pytest.mark.trainsafe({PROGRAM!r}, tp=[1, 2])\n"
        "def test_it(trainsafe): pass\n"
    )

    printed = run(
        *(sys.executable, "-P", "-m", "pytest", "--strict-markers", "test_sweep.py", "-v"),
        cwd=tmp_path,
        PYTHONPATH=str(site),
    )

    assert f"imported from {site}" in printed
    assert "test_it[tp1] PASSED" in printed
    assert "test_it[tp2] PASSED" in printed
