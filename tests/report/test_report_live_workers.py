"""The controller of pytest-xdist reads the progress of its workers' Runs from files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_trainsafe.runs.progress.board import TRAINING, WAITING, Board
from pytest_trainsafe.runs.progress.shared import (
    MAX_BYTES,
    WORKER_PROGRESS,
    announce,
    forget,
    publish,
    share_folder,
    shared_folder,
    shared_rows,
)


class Controller:
    """A controller's config, and the configs of its workers."""

    def __init__(self) -> None:
        self.cleanups: list[Any] = []
        self.config: Any = SimpleNamespace(stash=pytest.Stash(), add_cleanup=self.cleanups.append)

    def worker(self, name: str) -> Any:
        node = SimpleNamespace(config=self.config, workerinput={"workerid": name})
        share_folder(node)
        return SimpleNamespace(workerinput=node.workerinput)

    @property
    def folder(self) -> Path:
        folder = shared_folder(self.config)
        assert folder is not None
        return folder


def progress_in(folder: Path) -> list[tuple[str, str, int, str]]:
    return [(row.point, row.run, row.ranks, row.stage) for row in shared_rows(folder)]


@pytest.fixture
def controller() -> Any:
    made = Controller()
    yield made
    for cleanup in made.cleanups:
        cleanup()
    assert not made.folder.exists()


def test_the_stages_of_a_workers_runs_reach_the_controller(controller: Controller) -> None:
    now = 100.0
    board = Board(clock=lambda: now)
    second = controller.worker("gw10")
    announce(controller.worker("gw2"))
    publish(second, board)
    assert progress_in(controller.folder) == []

    with board.running("tp=2", "float64 run", 2) as enter:
        enter(WAITING)
        assert progress_in(controller.folder) == [("gw10 tp=2", "float64 run", 2, WAITING)]
        enter(TRAINING)
        now += 5
        with board.running("tp=1", "float64 reference", 1):
            first, other = shared_rows(controller.folder)
            assert first.stage == TRAINING
            assert first.since <= -5
            assert other.point == "gw10 tp=1"

    assert progress_in(controller.folder) == []


def test_a_worker_that_has_ended_shows_no_runs(controller: Controller) -> None:
    board = Board()
    publish(controller.worker("gw0"), board)
    with board.running("tp=2", "float64 run", 2):
        forget(controller.config, "gw0")

        assert progress_in(controller.folder) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{}",
        "[" * 5000,
        json.dumps([["tp=1", "run", 1, "reads your mail", 1.0, ""]]),
        json.dumps([["tp=1", "run", "1", TRAINING, 1.0, ""]]),
        json.dumps([[["tp=1"], "run", 1, TRAINING, 1.0, ""]]),
        json.dumps([["tp=1", "run", 1, [], 1.0, ""]]),
        json.dumps([["tp=1", "run", 1, TRAINING, "now", ""]]),
        json.dumps([["tp=1", "run", 1, TRAINING, 1.0, 4711]]),
        json.dumps([["x" * MAX_BYTES, "run", 1, TRAINING, 1.0, ""]]),
    ],
)
def test_a_damaged_progress_file_is_ignored(text: str, controller: Controller) -> None:
    board = Board()
    publish(controller.worker("gw1"), board)
    (controller.folder / "gw0.json").write_text(text)
    (controller.folder / "gw0.py").write_text("no file of a worker")

    with board.running("tp=2", "float64 run", 2):
        assert [row.point for row in shared_rows(controller.folder)] == ["gw1 tp=2"]


def test_a_worker_whose_progress_folder_is_missing_writes_nothing(tmp_path: Path) -> None:
    worker: Any = SimpleNamespace(
        workerinput={"workerid": "gw0", WORKER_PROGRESS: str(tmp_path / "elsewhere")}
    )
    board = Board()
    announce(worker)
    publish(worker, board)

    with board.running("tp=2", "float64 run", 2):
        assert not (tmp_path / "elsewhere").exists()
