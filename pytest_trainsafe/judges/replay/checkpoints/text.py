"""The terminal section of `--trainsafe-replay`: what was replayed, and if the results are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.core.usage import excerpt
from pytest_trainsafe.report.rows import write_lines

if TYPE_CHECKING:
    import pytest

#: The same as in `judges/replay/checkpoints/runs/replays.py`, which is not imported here because it
#: imports torch.
PROPERTY = "trainsafe_replay"

#: The most characters of a line.
_MOST = 2000


def write_replays(reporter: pytest.TerminalReporter) -> None:
    """Write the section on replayed Runs; writes nothing if the option is not given."""
    requested = reporter.config.stash[SETTINGS].replay
    if requested is None:
        return
    reports = [report for group in reporter.stats.values() for report in group]
    found = {
        value: None
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY and isinstance(value, str)
    }
    reporter.write_sep("=", "trainsafe replay")
    lines = found or [
        f"no test requested the run of {requested[0]}; select the test that recorded it"
    ]
    write_lines(reporter, (excerpt(text, _MOST) for text in lines))
