"""`--trainsafe-plan` and `--trainsafe-shard` in pytest's hooks.

The plugin registers an object of this module if one of the options is set.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.errors import DeclarationError
from pytest_trainsafe.sweep.collect import cells_of, fail_collection
from pytest_trainsafe.sweep.plan.balance import shards, weights
from pytest_trainsafe.sweep.plan.document import encode, make_plan, read_plan, require_same
from pytest_trainsafe.sweep.plan.seconds import read_seconds

FROM_PLAN = "--trainsafe-from-plan"


class PlanWriter:
    """Writes the plan to standard output and runs nothing; pytest's own output goes to stderr."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        # Standard output is the plan alone, so that it can be redirected to a file.  pytest has no
        # public way to change the file of its terminal writer.
        if session.config.pluginmanager.hasplugin("terminalreporter"):
            session.config.get_terminal_writer()._file = sys.stderr

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.config.pluginmanager.hasplugin("dsession"):
            raise pytest.UsageError(
                "a plan is made in one process; give --trainsafe-plan json on the command line, "
                "which turns pytest-xdist off, and not in the ini file"
            )
        if session.testsfailed:
            raise session.Interrupted("no plan is written, because tests could not be collected")
        found = [(item.nodeid, cell) for item, cell in cells_of(session.items)]
        seconds = read_seconds(self.folder) if self.folder is not None else {}
        plan = make_plan(found, len(session.items) - len(found), seconds)
        print(encode(plan), file=sys.stdout, flush=True)
        return True


class ShardSelector:
    """Deselects the tests of other shards, after every other selection.

    The first shard also has the tests without the marker and the Points that are skipped.
    """

    def __init__(self, number: int, count: int, plan: str) -> None:
        self.number, self.count, self.plan = number, count, plan
        self.empty = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if session.testsfailed:  # the run ends anyway, and some Points are missing
            return
        try:
            chosen = self._chosen(items)
        except DeclarationError as error:
            fail_collection(session, str(error))
            return
        mine = {item.nodeid for item, cell in cells_of(items) if not cell.invalid}
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            here = item.nodeid in chosen if item.nodeid in mine else self.number == 1
            (kept if here else dropped).append(item)
        self.empty = not kept and bool(dropped)
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = kept

    def _chosen(self, items: Sequence[pytest.Item]) -> set[str]:
        """The node ids of this shard's Points."""
        found = [(item.nodeid, cell) for item, cell in cells_of(items)]
        # Without a plan, measured seconds are not used.  If machines had measured different ones,
        # they would divide the tests differently, and no machine might run some test.
        plan = make_plan(found, 0, {})
        if self.plan:
            collected = [point.id for point in plan.points]
            plan = read_plan(FROM_PLAN, Path(self.plan))
            require_same(plan, self.plan, collected)
        weight = weights(
            {point.id: point.seconds for point in plan.points},
            {point.id: point.world_size for point in plan.points},
        )
        return set(shards(weight, self.count)[self.number - 1])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Makes the run succeed if this shard has no tests because other shards have them all."""
        if self.empty and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


def register(config: pytest.Config, folder: Path | None) -> None:
    """Registers the plugins for the plan and the shard, if the settings ask for them.

    `folder` has the seconds of earlier runs; None if there is no such folder.
    """
    settings = config.stash[SETTINGS]
    if settings.plan:
        config.pluginmanager.register(PlanWriter(folder), "trainsafe_plan")
    if settings.shard is not None:
        number, count = settings.shard
        config.pluginmanager.register(
            ShardSelector(number, count, settings.from_plan), "trainsafe_shard"
        )


def run_in_one_process(config: pytest.Config) -> None:
    """Turns pytest-xdist off: this process does all, such as the plan of what it collects."""
    for name, value in (("numprocesses", 0), ("maxprocesses", None), ("dist", "no"), ("tx", [])):
        if hasattr(config.option, name):
            setattr(config.option, name, value)
