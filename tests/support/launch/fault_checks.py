"""Runs a row of the fault matrix with a launcher, and checks what the row promises."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.launch import GroupFailure, GroupResult, Launcher, Task, raise_for_failure
from tests.support.launch import fault_programs
from tests.support.launch.fault_catalogue import Fault, headline_pattern

#: Timeouts: a group that fails early never reaches LONG; a group that hangs waits for SHORT.
LONG, SHORT = 240.0, 2.0


def name(fault: Fault) -> str:
    """The id of the row's test."""
    return "-".join([fault.program, *(str(arg) for arg in fault.args)]).replace(" ", "_")


def run(fault: Fault, launcher: Launcher, folder: Path) -> GroupResult:
    """Run the row's program with its working and temporary directories below the folder."""
    work, temporary = folder / "work", folder / "tmp"
    work.mkdir(parents=True)
    temporary.mkdir()
    task = Task.of(
        getattr(fault_programs, fault.program),
        *fault.args,
        world_size=fault.world_size,
        env={"TMPDIR": str(temporary)},
    )
    task = msgspec.structs.replace(task, cwd=str(work))
    timeout = SHORT if fault.ends == "timeout" else LONG
    return launcher.run(task, timeout=timeout, workdir=folder)


def check(fault: Fault, result: GroupResult, launcher: str, folder: Path) -> None:
    """The row's promises of a group that has ended."""
    if fault.ends == "normally":
        raise_for_failure(result)
    else:
        with pytest.raises(GroupFailure) as caught:
            raise_for_failure(result)
        message = str(caught.value)
        first, *others = headline_pattern(fault, launcher)
        assert re.match(first, message.splitlines()[0]), message
        for pattern in others:
            assert re.search(pattern, message, re.MULTILINE), message
        assert len(message) < 100_000
        if fault.ends != "timeout":
            assert result.seconds < LONG / 2
    assert left_behind(folder) == []


def all_at_once(rows: Iterable[tuple[Fault, Launcher, str]], folder: Path) -> list[str]:
    """Run rows at the same time, each with a launcher of this name; what is wrong with each."""
    numbered = [(*row, folder / str(number)) for number, row in enumerate(rows)]
    with ThreadPoolExecutor(len(numbered)) as pool:
        results = list(pool.map(lambda row: run(row[0], row[1], row[3]), numbered))
    wrong = []
    for (fault, _, launcher, own), result in zip(numbered, results, strict=True):
        try:
            check(fault, result, launcher, own)
        except (AssertionError, GroupFailure, pytest.fail.Exception) as error:
            wrong.append(f"{fault.fault}, under {launcher}: {error}")
    return wrong


def left_behind(folder: Path) -> list[str]:
    """Processes that work below the folder, and temporary files."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(folder)):
                found.append(f"process {pid}")
        except OSError:
            continue
    return found + [path.name for path in (folder / "tmp").iterdir()]
