"""The command that runs a test again."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, NamedTuple

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.report.rows import row

if TYPE_CHECKING:
    from pytest_trainsafe.sweep.case import Case


class Rerun(NamedTuple):
    """How the tests of a run are run again, from the folder `started` in which it was started.

    `options` are those of the command, and `root` the folder to which the ids of tests are
    relative; both folders are "" if there is no run.
    """

    options: str = ""
    root: str = ""
    started: str = ""

    def command(self, nodeid: str, words: str = "", reader: str = "") -> str:
        """The command for a test, such as `pytest 'test_gpt.py::test_gpt[tp2]'`.

        `words` go before the options.  `reader` is the folder in which a reader would run it, if
        that need not be the one where the run was started: the command then begins with a change
        to this one.
        """
        path, colons, name = nodeid.partition("::")
        if self.root and os.path.exists(file := os.path.join(self.root, path)):
            path = os.path.relpath(file, self.started)
        command = f"pytest {shlex.quote(f'{path}{colons}{name}')}{words}{self.options}"
        if not (reader and self.started):
            return command
        folder = os.path.relpath(os.path.realpath(self.started), os.path.realpath(reader))
        if folder == os.curdir:
            return command
        outside = folder.split(os.sep)[0] == os.pardir
        return f"cd {shlex.quote(self.started if outside else folder)} && {command}"


#: For reports on no run of pytest: no options, and the ids as they are.
NO_RUN = Rerun()


def rerun_with(settings: Settings) -> Rerun:
    """How a test of the run with these settings is run again with the same settings."""
    words = ""
    if settings.sweep and not settings.sweep_from_ini:
        swept = " ".join(f"{axis}={','.join(values)}" for axis, values in settings.sweep)
        words = f" --trainsafe-sweep {swept}"
    return Rerun(f"{words}{settings.rerun}", settings.root, settings.started)


def rerun_rows(nodeid: str, rerun: Rerun) -> list[str]:
    """The row with the command; none for a test without an id."""
    return row("rerun", rerun.command(nodeid), wrapped=False) if nodeid else []


def rerun_of(case: Case | None) -> list[str]:
    """The row with the command that reruns a test; none for traces without a test."""
    return [] if case is None else rerun_rows(case.nodeid, rerun_with(case.settings))
