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
    WarmServer,
    raise_for_failure,
)
from tests.support.launch import warm_programs


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


@pytest.fixture(scope="module")
def groups(
    warm_server: WarmServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[GroupResult, GroupResult]:
    """A forked group and one of torchrun, whose ranks note their state and use every collective."""
    environ = {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_LOGS": "dynamo"}
    program, folder = warm_programs.state_before_collectives, tmp_path_factory.mktemp("fresh")
    task: dict[str, Any] = {"env": environ, "threads": 2, "world": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SET_AFTER_THE_SERVER_STARTED", "ü")
        forked = run(WarmLauncher(warm_server.address, grace=2.0), program, folder, **task)
        execed = run(TorchrunLauncher(), program, folder, **task)
    return forked, execed


def test_a_forked_rank_has_the_process_state_that_torchrun_gives(
    groups: tuple[GroupResult, GroupResult],
) -> None:
    forked, execed = (group.values for group in groups)
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
    assert forked[0]["debug"] == "DebugLevel.INFO"
    assert forked[0]["log level"] == logging.INFO


def test_ledgers_of_forked_ranks_equal_those_under_torchrun(
    groups: tuple[GroupResult, GroupResult],
) -> None:
    """Also for calls from preloaded modules, which imported the functions before the fork."""
    ledgers = []
    for result in groups:
        raise_for_failure(result)
        ledgers.append([(rank.folder / "ledger.jsonl").read_text() for rank in result.ranks])
    assert ledgers[0] == ledgers[1]
