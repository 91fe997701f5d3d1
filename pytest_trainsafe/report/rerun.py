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

    def command(self, nodeid: str, words: str = "") -> str:
        """The command for a test, such as `pytest 'test_gpt.py::test_gpt[tp2]'`.

        `words` go before the options.
        """
        path, colons, name = nodeid.partition("::")
        if self.root and os.path.exists(file := os.path.join(self.root, path)):
            path = os.path.relpath(file, self.started)
        return f"pytest {shlex.quote(f'{path}{colons}{name}')}{words}{self.options}"


#: For reports on no run of pytest: no options, and the ids as they are.
NO_RUN = Rerun()


def rerun_with(settings: Settings) -> Rerun:
    """How a test of the run with these settings is run again with the same settings."""
    default = Settings()
    words = []
    if settings.sweep and not settings.sweep_from_ini:
        swept = " ".join(f"{axis}={','.join(values)}" for axis, values in settings.sweep)
        words.append(f"--trainsafe-sweep {swept}")
    if settings.dtypes:
        words.append(f"--trainsafe-dtype {','.join(settings.dtypes)}")
    if settings.profile:
        words.append(f"--trainsafe-profile {settings.profile}")
    if settings.seed != default.seed:
        words.append(f"--trainsafe-seed {settings.seed}")
    return Rerun("".join(f" {word}" for word in words), settings.root, settings.started)


def rerun_rows(nodeid: str, rerun: Rerun) -> list[str]:
    """The row with the command; none for a test without an id."""
    return row("rerun", rerun.command(nodeid), wrapped=False) if nodeid else []


def rerun_of(case: Case | None) -> list[str]:
    """The row with the command that reruns a test; none for traces without a test."""
    return [] if case is None else rerun_rows(case.nodeid, rerun_with(case.settings))
