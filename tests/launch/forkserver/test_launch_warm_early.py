"""A fork server that is started before the launcher needs it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_trainsafe.launch.forkserver import early
from pytest_trainsafe.launch.forkserver.start import status


@pytest.fixture(autouse=True)
def _none_before_or_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(early, "_started", False)
    monkeypatch.setattr(early, "_waiting", [])
    yield
    early.close()


def test_a_server_starts_once_and_is_taken_once() -> None:
    assert early.start()
    assert not early.start()
    server = early.take()
    assert server is not None
    try:
        assert early.take() is None
        assert not early.start()
    finally:
        server.close()


def test_no_server_is_taken_that_has_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    early.start()
    ((server, _),) = early._waiting
    monkeypatch.setenv("TORCH_SHOW_CPP_STACKTRACES", "1")  # torch reads it once

    assert early.take() is None

    assert not Path(server.address).exists()


def test_a_server_is_taken_after_a_change_that_forked_ranks_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early.start()
    monkeypatch.setenv("DATA_FOLDER", os.devnull)
    server = early.take()
    assert server is not None
    server.close()


def test_a_server_that_nobody_takes_is_ended_and_another_run_can_start_one() -> None:
    early.start()
    ((server, _),) = early._waiting

    early.close()

    assert not Path(server.address).exists()
    assert early.start()


def test_the_server_imports_what_the_test_modules_have_imported() -> None:
    importlib.import_module("torch.distributed.tensor")  # as a program with DTensors does
    early.start()
    early.expect_imports()
    server = early.take()
    assert server is not None
    try:
        # In `imported` and not in `learned`: before the first connection, and without a trial.
        found = status(server.address)
    finally:
        server.close()
    assert "torch.distributed.tensor" in found["imported"]
    assert found["learned"] == []
