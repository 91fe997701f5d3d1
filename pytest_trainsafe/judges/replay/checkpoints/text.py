"""The terminal section of `--trainsafe-replay`: what was replayed, and if the results are equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.usage import excerpt
from pytest_trainsafe.report.rows import write_lines

if TYPE_CHECKING:
    import pytest

#: The same as in `judges/replay/checkpoints/runs/replays.py`, which is not imported here because it
#: imports torch.
PROPERTY = "trainsafe_replay"

#: The most characters of a line.
_MOST = 2000


def write_replays(
    reporter: pytest.TerminalReporter, settings: Settings, reports: Iterable[pytest.TestReport]
) -> None:
    """Writes the section on replayed Runs."""
    assert settings.replay is not None
    found = {
        value: None
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY and isinstance(value, str)
    }
    reporter.write_sep("=", "trainsafe replay")
    lines = found or [
        f"no test requested the run of {settings.replay[0]}; select the test that recorded it"
    ]
    write_lines(reporter, (excerpt(text, _MOST) for text in lines))
