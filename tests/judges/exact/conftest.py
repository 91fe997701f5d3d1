"""The command `certificate`, in the process of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.__main__ import main
from pytest_trainsafe.launch import Launcher
from pytest_trainsafe.launch.forkserver import launcher
from tests.support.exact.certify import Certify


@pytest.fixture
def certify(
    pytester: pytest.Pytester,
    run_launcher: Launcher,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Certify:
    """`certify(path, *options)` is the command's status and what it prints and reports.

    The program is imported from the project's folder.  Ranks run in turn in a process that the fork
    server of this run forks: a new process and a fork server of its own take
    seconds of CPU each.  `pytester` restores the modules and the path on which they are searched.
    """
    address = getattr(run_launcher, "address", "")
    if address:
        monkeypatch.setattr(launcher, "fork_server", lambda setup, stop: (address, None))

    def run(path: Path, *options: str) -> tuple[int, str, str]:
        capsys.readouterr()
        where = (f"--path={pytester.path}", "--launcher=threads")
        status = main(["certificate", str(path), *where, *options])
        return status, *capsys.readouterr()

    return run
