"""Runs pytest on a written test file in a separate process, as a user would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def command(folder: Path, source: str, *options: str) -> list[str]:
    """Write `test_inner.py` into `folder`; the command line that runs it there."""
    (folder / "test_inner.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    # The tests read the first report; localizing the faulty code would only take time.
    quick = ("--trainsafe-dtype=float64", "--trainsafe-localize=off")
    plugins = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    base = (*plugins, f"--basetemp={folder}/base", *quick)
    return [sys.executable, "-m", "pytest", *base, *options]


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the written test; its output is captured."""
    return captured(command(folder, source, *options), folder)


def captured(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; its output is captured."""
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def flat(text: str) -> str:
    """Text on one line, without the margin `E` of pytest's failures."""
    return re.sub(r"\s+(E\s+)?", " ", text)
