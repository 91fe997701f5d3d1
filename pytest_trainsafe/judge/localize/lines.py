"""Tells lines of users from those of packages, and words what they do.  Called by `places`."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.core.code_files import is_fixture, is_installed, relative
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import Site


def is_users(line: str) -> bool:
    """Whether a line is the user's, and not an installed package's or this package's loop's."""
    return bool(line) and not (is_installed(line) or is_fixture(line))


def through(site: Site) -> str:
    """Returns ", through FILE:LINE" if the user's code called a package that does the work.

    FILE:LINE is the line in the package.  Returns "" if the user's own line does the work.
    """
    return f", through {relative(site.at)}" if site.user and site.at != site.user else ""


def line_of_program(program: Program) -> str:
    """The "file:line" of a program's function, or the path of a script; "" if neither is known."""
    if not program.file or is_fixture(program.file):
        return program.path if program.script is not None else ""
    function = program.path.rpartition(":")[2].rpartition(".")[2]
    lines = Path(program.file).read_text(encoding="utf-8").splitlines()
    found = (n for n, line in enumerate(lines, 1) if line.lstrip().startswith(f"def {function}("))
    return f"{program.file}:{next(found, 1)}"
