"""Starts the fork server at the first sign, during collection, that tests will train.

Such a sign is that a test module takes an assertion from the package, which it does before it
imports the programs, or else the first marked test.  A worker of pytest-xdist starts no server
early, because all workers share the one that the first of them needs.
"""

from __future__ import annotations

import gc
import sys
from functools import partial

import pytest

from pytest_trainsafe import deferred
from pytest_trainsafe.config.settings import SETTINGS

#: The fixtures that launch ranks.
_LAUNCHING = {"reference_trace", "candidate_trace", "torchrun_group"}

#: Whether this module has paused the garbage collector.
_paused = False

#: Options of pytest with which it collects tests and runs none.
_COLLECTS_ONLY = ("collectonly", "showfixtures", "show_fixtures_per_test", "setupplan")


def watch(config: pytest.Config) -> None:
    """Starts the server when an assertion is first taken from the package, if it will be used."""
    if _is_used(config):
        deferred.first_assertion = partial(_start, config)
        config.add_cleanup(_forget)


def collected(metafunc: pytest.Metafunc) -> None:
    """Starts the server if this marked test launches ranks."""
    if _LAUNCHING.intersection(metafunc.fixturenames):
        start(metafunc.config)


def start(config: pytest.Config) -> None:
    """Starts the server, if the launcher of this run uses one."""
    if _is_used(config):
        _start(config)


def expect_imports() -> None:
    """Lets the server import what the test modules, and so the programs, have imported."""
    early = sys.modules.get("pytest_trainsafe.launch.forkserver.early")
    if early is not None:
        early.expect_imports()


def resume_collector() -> None:
    """Lets the garbage collector run again after the imports, which `_start` paused it for."""
    global _paused
    if _paused:
        _paused = False
        gc.enable()


def _is_used(config: pytest.Config) -> bool:
    settings = config.stash[SETTINGS]
    forks = settings.launcher in ("auto", "warm", "threads")
    forks = forks and "warm" not in dict(settings.launchers)
    runs = not settings.plan and not any(config.getoption(each, False) for each in _COLLECTS_ONLY)
    return forks and runs and not hasattr(config, "workerinput")


def _start(config: pytest.Config) -> None:
    global _paused
    from pytest_trainsafe.launch.forkserver import early

    deferred.first_assertion = None
    if early.start():
        config.add_cleanup(early.close)
        if gc.isenabled():
            _paused = True
            # The test modules import torch now: objects that stay, which the collector would visit
            # again and again, a tenth of the time that the import takes.
            gc.disable()
            config.add_cleanup(resume_collector)


def _forget() -> None:
    deferred.first_assertion = None
