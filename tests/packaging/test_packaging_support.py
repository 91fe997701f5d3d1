"""What test files share is in `tests/support`, and nothing else in `tests/` is imported."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Modules outside `tests/support`: the package itself, and what mypy checks as a user's files.
ELSEWHERE = frozenset(
    {"__init__.py", "packaging/typing_accepted.py", "packaging/typing_refused.py"}
)


def is_test(file: Path) -> bool:
    """Whether pytest reads a file: a file of tests, or a conftest."""
    return file.name.startswith("test_") or file.name == "conftest.py"


def misplaced(tests: Path) -> list[str]:
    """The modules that are neither tests nor in `support` or ELSEWHERE."""
    return sorted(
        name
        for file in tests.rglob("*.py")
        for name in [file.relative_to(tests).as_posix()]
        if not is_test(file) and not name.startswith("support/") and name not in ELSEWHERE
    )


def imports_of_tests(tests: Path) -> Iterator[str]:
    """The imports of test files and conftests, by which file imports them."""
    stems = {file.stem for file in tests.rglob("*.py") if is_test(file)}
    for file in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(each.name for each in node.names)]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            for name in names:
                if stems.intersection(name.split(".")):
                    yield f"{file.relative_to(tests).as_posix()} imports {name}"


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder of tests in which every module is at its place."""
    for file in (*ELSEWHERE, "conftest.py", "launch/test_it.py", "support/launch/programs.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    return tmp_path


def test_every_module_that_is_no_test_is_in_tests_support(root: Path) -> None:
    assert misplaced(root / "tests") == []
    assert all((root / "tests" / name).is_file() for name in ELSEWHERE)


def test_no_test_file_is_imported_by_another_file(root: Path) -> None:
    assert list(imports_of_tests(root / "tests")) == []


def test_a_module_beside_the_tests_is_found(planted: Path) -> None:
    assert misplaced(planted) == []

    (planted / "launch" / "programs.py").write_text("")

    assert misplaced(planted) == ["launch/programs.py"]


@pytest.mark.parametrize(
    "line",
    ["from test_it import f", "import tests.launch.test_it", "from tests.launch import test_it"],
)
def test_an_import_of_a_test_file_is_found(planted: Path, line: str) -> None:
    (planted / "launch" / "test_other.py").write_text("")
    assert list(imports_of_tests(planted)) == []

    (planted / "launch" / "test_other.py").write_text(line)

    [found] = imports_of_tests(planted)
    assert found.startswith("launch/test_other.py imports ")


def test_the_support_package_is_that_beside_these_tests(root: Path) -> None:
    module = importlib.import_module("tests.support.launch.programs")

    assert module.__file__ == str(root / "tests" / "support" / "launch" / "programs.py")
