"""A forked rank is like a new process of torchrun: it has no state of earlier groups."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.launcher.api import LaunchConfig

from pytest_trainsafe.launch import (
    GroupResult,
    Task,
    TorchrunLauncher,
    WarmLauncher,
    raise_for_failure,
)
from tests.support.launch import warm_programs
from tests.support.launch.programs import every_collective


def run(launcher: Any, program: Any, folder: Path, world: int = 2, **options: Any) -> GroupResult:
    task = Task.of(program, world_size=world, **options)
    result: GroupResult = launcher.run(task, timeout=60, workdir=folder)
    return result


def test_a_group_finds_no_state_of_the_previous_group(warm: WarmLauncher, tmp_path: Path) -> None:
    raise_for_failure(run(warm, warm_programs.leave_state_behind, tmp_path))
    assert run(warm, warm_programs.find_state, tmp_path).values == [[], []]


def test_unseeded_random_numbers_differ_between_ranks_and_groups(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    """Forked children that shared one seed would hide that a program sets none."""
    drawn = [
        numbers for _ in range(2) for numbers in run(warm, warm_programs.draw, tmp_path).values
    ]
    for generator in range(3):
        assert len({numbers[generator] for numbers in drawn}) == 4
    first, second = run(warm, warm_programs.draw_seeded, tmp_path).values
    assert first == second


def test_a_forked_rank_has_the_process_state_that_torchrun_gives(
    warm: WarmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_AFTER_THE_SERVER_STARTED", "ü")
    environ = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_LOGS": "dynamo"}
    task: dict[str, Any] = {"env": environ, "threads": 2}
    forked = run(warm, warm_programs.process_state, tmp_path, **task).values
    execed = run(TorchrunLauncher(), warm_programs.process_state, tmp_path, **task).values
    for here, there in zip(forked, execed, strict=True):
        ours, theirs = here.pop("environ"), there.pop("environ")
        # differ between groups: the run id, the port of the store, a file
        for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"):
            assert ours.pop(name)
            assert theirs.pop(name)
        if "signals_to_handle" not in LaunchConfig.__dataclass_fields__:  # before torch 2.9 or so
            assert ours.pop("TORCHELASTIC_SIGNALS_TO_HANDLE")
        assert ours == theirs
        assert here == there
    assert forked[0]["threads"] == 2
    assert forked[0]["debug"] == "DebugLevel.DETAIL"
    assert forked[0]["log level"] == logging.INFO


def test_ledgers_of_forked_ranks_equal_those_under_torchrun(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    """Also for calls from preloaded modules, which imported the functions before the fork."""
    ledgers = []
    for launcher in (warm, TorchrunLauncher()):
        result = run(launcher, every_collective, tmp_path, world=4)
        raise_for_failure(result)
        ledgers.append([(rank.folder / "ledger.jsonl").read_text() for rank in result.ranks])
    assert ledgers[0] == ledgers[1]
