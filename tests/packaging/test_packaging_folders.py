"""Folders and files of the source stay small, and the folders of `tests/` mirror them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = ("fixtures", "invariants", "pytest_trainsafe", "reference_models")

#: Folders whose size is limited.
LIMITED = (*SOURCES, "tests/support")

#: Folders of tests that concern more than one folder of the source.
NO_MIRROR = frozenset({"benchmarks", "end_to_end", "packaging", "third_party"})

#: The most Python files of a folder, and the most lines of a file.
FILES, LINES = 15, 450


def folders_with_tests(tests: Path) -> set[Path]:
    """The folders below `tests` that hold test files, relative to it."""
    return {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}


def too_large(folder: Path, root: Path) -> Iterator[str]:
    """Folders with too many files, and files with too many lines, in a source folder.

    The number of files of the package's own top folder is not limited: users import from there.
    """
    for package in sorted({file.parent for file in folder.rglob("*.py")}):
        files = sorted(package.glob("*.py"))
        if package != root / "pytest_trainsafe" and len(files) > FILES:
            yield f"{package.relative_to(root)}: {len(files)} files"
        for file in files:
            lines = len(file.read_text(encoding="utf-8").splitlines())
            if lines > LINES:
                yield f"{file.relative_to(root)}: {lines} lines"


def without_source(root: Path) -> list[str]:
    """The folders of tests that mirror neither a folder of the source nor a top-level module."""
    package = root / "pytest_trainsafe"
    return sorted(
        folder.as_posix()
        for folder in folders_with_tests(root / "tests")
        if folder.parts[:1] and folder.parts[0] not in NO_MIRROR
        if not (root / folder if folder.parts[0] in SOURCES else package / folder).is_dir()
        if not (package / f"{folder}.py").is_file()
    )


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A small repository with the same layout, which violates no limit."""
    for file in (
        *("pytest_trainsafe/plugin.py", "pytest_trainsafe/judges/compare/compare.py"),
        *("fixtures/core.py", "invariants/__init__.py", "reference_models/parallel/axes.py"),
        *("tests/plugin/test_a.py", "tests/judges/compare/test_b.py", "tests/fixtures/test_c.py"),
        *("tests/reference_models/parallel/test_d.py", "tests/end_to_end/test_e.py"),
        *("tests/support/helper.py", "tests/conftest.py"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    return tmp_path


@pytest.mark.parametrize("folder", LIMITED)
def test_a_folder_has_at_most_fifteen_files_of_at_most_450_lines(root: Path, folder: str) -> None:
    assert list((root / folder).rglob("*.py"))
    assert list(too_large(root / folder, root)) == []


def test_every_folder_of_tests_mirrors_a_source_folder_or_module(root: Path) -> None:
    assert len(folders_with_tests(root / "tests")) > len(NO_MIRROR)
    assert without_source(root) == []


def test_every_folder_exempt_from_mirroring_exists(root: Path) -> None:
    assert {Path(name) for name in NO_MIRROR} <= folders_with_tests(root / "tests")


@pytest.mark.parametrize("folder", LIMITED)
def test_a_folder_of_sixteen_files_and_a_file_of_451_lines_are_found(
    planted: Path, folder: str
) -> None:
    assert list(too_large(planted / folder, planted)) == []
    below = planted / folder / "below"
    below.mkdir()
    for number in range(FILES):
        (below / f"file_{number}.py").write_text("pass\n" * LINES)
    assert list(too_large(planted / folder, planted)) == []

    (below / "one_more.py").write_text("pass\n" * (LINES + 1))

    assert list(too_large(planted / folder, planted)) == [
        f"{folder}/below: 16 files",
        f"{folder}/below/one_more.py: 451 lines",
    ]


@pytest.mark.parametrize(
    "folder", ["compare", "judges/compare/localize", "fixtures/deepspeed", "reference_models/data"]
)
def test_a_folder_of_tests_without_a_source_folder_is_found(planted: Path, folder: str) -> None:
    assert without_source(planted) == []
    (planted / "tests" / folder).mkdir(parents=True)
    (planted / "tests" / folder / "test_it.py").write_text("")

    assert without_source(planted) == [folder]
