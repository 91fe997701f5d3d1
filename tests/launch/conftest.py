"""Fixtures of the launch tests: launchers, and functions that run a program in a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.launch import (
    GroupFailure,
    GroupResult,
    Launcher,
    Task,
    ThreadsLauncher,
    TorchrunLauncher,
    WarmLauncher,
    WarmServer,
    raise_for_failure,
)
from tests.support.launch.programs import PROCESSES, Launch


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmServer]:
    """One fork server for all tests that need no server of their own."""
    server = WarmServer.start(tmp_path_factory.mktemp("warm"))
    yield server
    server.close()


@pytest.fixture
def warm(warm_server: WarmServer) -> WarmLauncher:
    """A launcher at the shared fork server."""
    return WarmLauncher(warm_server.address, grace=2.0)


@pytest.fixture
def threads(warm_server: WarmServer) -> ThreadsLauncher:
    """A launcher of ranks that are threads, at the shared fork server."""
    return ThreadsLauncher(warm_server.address, grace=2.0)


# `make test` has torchrun in the fault matrix, in the tests of equal traces, and in the examples.
@pytest.fixture(params=[*PROCESSES, "threads"])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Each launcher in turn: whatever the ranks do, both must report the same."""
    if request.param == "torchrun":
        return TorchrunLauncher(grace=2.0)
    found: WarmLauncher = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    """Run a program in a fresh group: `launch(program, *args, world_size=2, timeout=60)`."""

    def run(
        program: Any, *args: Any, world_size: int = 2, timeout: float = 60, **kwargs: Any
    ) -> GroupResult:
        task = Task.of(program, *args, world_size=world_size, **kwargs)
        return launcher.run(task, timeout=timeout, workdir=tmp_path)

    return run


@pytest.fixture
def failure(launch: Launch) -> Callable[..., str]:
    """Run a program as `launch` does, and return the message of the GroupFailure."""

    def run(program: Any, *args: Any, **options: Any) -> str:
        with pytest.raises(GroupFailure) as caught:
            raise_for_failure(launch(program, *args, **options))
        return str(caught.value)

    return run
