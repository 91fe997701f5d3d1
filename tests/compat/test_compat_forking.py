"""A forked process reads TORCH_LOGS again if it differs from that before the fork."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_trainsafe.compat import forking
from pytest_trainsafe.compat.private import lacking

LOGGER = logging.getLogger("torch.distributed")

#: A level that no value of TORCH_LOGS sets.
OTHER = 35


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment before TORCH_LOGS was set; logs and the level of LOGGER are as before."""
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    before, level = dict(os.environ), LOGGER.level
    LOGGER.setLevel(OTHER)
    monkeypatch.setenv("TORCH_LOGS", "+distributed")
    yield before
    now = dict(os.environ)
    monkeypatch.delenv("TORCH_LOGS")
    forking.read_logs_again(now, os.environ)
    LOGGER.setLevel(level)


def test_a_changed_variable_sets_the_level_of_its_logger(logs: dict[str, str]) -> None:
    forking.read_logs_again(logs, os.environ)
    assert LOGGER.level == logging.DEBUG


def test_an_unchanged_environment_leaves_the_logs_as_they_are(logs: dict[str, str]) -> None:
    forking.read_logs_again(os.environ, os.environ)
    assert LOGGER.level == OTHER


def test_without_the_function_the_logs_stay_as_they_are(logs: dict[str, str], without: Any) -> None:
    copy = without("forking", "torch._logging._internal._init_logs")
    copy.read_logs_again(logs, os.environ)
    assert LOGGER.level == OTHER
    [why] = lacking()
    assert why.startswith("TORCH_LOGS of a forked rank is not read: torch ")
    assert copy.LOGS.why == why
