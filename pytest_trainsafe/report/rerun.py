"""The command that runs a test again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.report.rows import row

if TYPE_CHECKING:
    from pytest_trainsafe.sweep.case import Case


def rerun_command(nodeid: str, options: str) -> str:
    """The command that runs a test again: `pytest 'test_gpt.py::test_gpt[tp2]'` and `options`."""
    return f"pytest {shlex.quote(nodeid)}{options}"


def rerun_options(settings: Settings) -> str:
    """The options of a command that runs a test again with the same settings."""
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
    return "".join(f" {word}" for word in words)


def rerun_rows(nodeid: str, options: str) -> list[str]:
    """The row with the command; none for a test without an id."""
    return row("rerun", rerun_command(nodeid, options), wrapped=False) if nodeid else []


def rerun_of(case: Case | None) -> list[str]:
    """The row with the command that reruns a test; none for traces without a test."""
    return [] if case is None else rerun_rows(case.nodeid, rerun_options(case.settings))
