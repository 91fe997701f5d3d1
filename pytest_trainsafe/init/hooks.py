"""`--trainsafe-init` in pytest's hooks: the plugin registers an object if the option is set."""

from __future__ import annotations

import pytest

from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.runs import early_start


class Init:
    """Trains a program, prints what it lacks, and writes its first test, in place of the tests."""

    def __init__(self) -> None:
        self.status = pytest.ExitCode.OK

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collects nothing."""
        session.items = []
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Does what the option asks for, and runs no tests."""
        if session.config.pluginmanager.hasplugin("dsession"):
            raise pytest.UsageError(
                "a first test is written in one process; give --trainsafe-init on the command "
                "line, which turns pytest-xdist off, and not in the ini file"
            )
        from pytest_trainsafe.init.program import find

        config = session.config
        early_start.start(config)
        found = find(config.stash[SETTINGS].init, config.invocation_params.dir)
        from pytest_trainsafe.init.contact import first_contact  # imports torch

        done = first_contact(config, found)
        self.status = pytest.ExitCode.OK if done else pytest.ExitCode.TESTS_FAILED
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The exit status: 0 if the test was written and nothing lacks, else 1."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = self.status
