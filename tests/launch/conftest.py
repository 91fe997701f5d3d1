"""Shared by the tests of launch: one way to run a program and look at what became of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launch_programs import Launch

from pytest_trainsafe.launch import GroupFailure, GroupResult, Task, TorchrunLauncher


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run a program in a fresh group: `launch(program, *args, world_size=2, timeout=60)`."""

    def run(
        program: Any, *args: Any, world_size: int = 2, timeout: float = 60, **kwargs: Any
    ) -> GroupResult:
        task = Task.of(program, *args, world_size=world_size, **kwargs)
        return TorchrunLauncher(grace=2.0).run(task, timeout=timeout, workdir=tmp_path)

    return run


@pytest.fixture
def failure(launch: Launch) -> Callable[..., str]:
    """Run a program as `launch` does, and return the message of the GroupFailure."""

    def run(program: Any, *args: Any, **options: Any) -> str:
        with pytest.raises(GroupFailure) as caught:
            launch(program, *args, **options).raise_for_failure()
        return str(caught.value)

    return run
