"""Environment variables that the project's code reads are noted, and those of libraries are not."""

from __future__ import annotations

import os
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trainsafe.record.reads.notes import EVERY_VARIABLE
from pytest_trainsafe.record.reads.variables import noted


@pytest.fixture(autouse=True)
def _set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTOR", "1.0")


def names(program: Callable[[], object]) -> set[str]:
    found: set[str] = set()
    with noted(found.add):
        program()
    return found


READS: dict[str, Callable[[], object]] = {
    "environ[]": lambda: os.environ["FACTOR"],
    "environ.get": lambda: os.environ.get("FACTOR"),
    "getenv": lambda: os.getenv("FACTOR"),
    "in": lambda: "FACTOR" in os.environ,
    "setdefault": lambda: os.environ.setdefault("FACTOR", "2"),
    "environb": lambda: os.environb[b"FACTOR"],
    "expandvars": lambda: os.path.expandvars("$FACTOR/data"),
    "Template": lambda: string.Template("$FACTOR").substitute(os.environ),
    "executed code": lambda: eval("os.environ['FACTOR']"),  # noqa: S307
}


@pytest.mark.parametrize("how", READS)
def test_a_variable_that_the_project_reads_is_noted(how: str) -> None:
    assert names(READS[how]) == {"FACTOR"}


def test_a_variable_that_is_not_set_is_noted() -> None:
    assert names(lambda: os.environ.get("NOT_SET")) == {"NOT_SET"}


def test_the_home_folder_is_a_variable_that_the_project_reads() -> None:
    assert names(lambda: Path.home()) == {"HOME"}


def test_a_program_that_iterates_reads_every_variable() -> None:
    assert EVERY_VARIABLE in names(lambda: dict(os.environ))
    assert EVERY_VARIABLE in names(lambda: [name for name in os.environ if name == "FACTOR"])


def test_a_variable_that_a_library_reads_is_not_noted(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "library.py"
    names_of: dict[str, Callable[[], object]] = {}
    source = "import os\ndef read():\n    return os.environ['FACTOR'], dict(os.environ)\n"
    exec(compile(source, str(file), "exec"), names_of)  # noqa: S102

    assert names(names_of["read"]) == set()
    assert names(lambda: subprocess.run([sys.executable, "-c", ""], check=True)) == set()


def test_the_environment_is_as_before_afterwards() -> None:
    kind = type(os.environ)
    before = (kind.__getitem__, kind.__iter__)
    names(lambda: None)
    assert (kind.__getitem__, kind.__iter__) == before
