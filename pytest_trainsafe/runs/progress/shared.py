"""Shows the controller, through files, what the Runs of pytest-xdist workers are doing.

The controller makes one folder and passes its path to the workers.  A worker that has collected
trainsafe tests writes a file there, and rewrites it whenever the stage of a Run changes.  A worker
on another machine has no such folder and writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.launch.resources import scratch
from pytest_trainsafe.runs.progress.board import STAGES, Board, Status

#: The key in `workerinput` under which a controller passes the folder's path to a worker.
WORKER_PROGRESS = "trainsafe_progress"

#: The largest file that is read, and the most Runs of one worker that are shown.
MAX_BYTES, MAX_ROWS = 100_000, 50

_FOLDER = pytest.StashKey[Path]()
_NAME = re.compile(r"(gw[0-9]{1,6})\.json", re.ASCII)


def share_folder(node: Any) -> None:
    """Passes the path of this run's folder to a worker that is about to start."""
    config: pytest.Config = node.config
    if _FOLDER not in config.stash:
        try:
            made = scratch.make("progress")
        except OSError:  # the tests do not depend on live lines
            return
        config.stash[_FOLDER] = made.path
        config.add_cleanup(made.remove)
    node.workerinput[WORKER_PROGRESS] = str(config.stash[_FOLDER])


def shared_folder(config: pytest.Config) -> Path | None:
    """The folder that this run's workers write to; None in a process that is no controller."""
    return config.stash.get(_FOLDER, None)


def announce(config: pytest.Config) -> None:
    """Writes a worker's file, still without Runs, to show that it has trainsafe tests."""
    worker = getattr(config, "workerinput", {})
    if WORKER_PROGRESS in worker:
        _write(Path(worker[WORKER_PROGRESS], f"{worker['workerid']}.json"), [], 0.0)


def publish(config: pytest.Config, board: Board) -> None:
    """Writes the rows of a worker's board to its file whenever they change."""
    worker = getattr(config, "workerinput", {})
    if WORKER_PROGRESS not in worker:
        return
    file = Path(worker[WORKER_PROGRESS], f"{worker['workerid']}.json")
    board.changed = lambda rows: _write(file, rows, board.clock())


def forget(config: pytest.Config, worker: str) -> None:
    """Removes the file of a worker that has ended."""
    folder = config.stash.get(_FOLDER, None)
    if folder is not None and _NAME.fullmatch(f"{worker}.json"):
        (folder / f"{worker}.json").unlink(missing_ok=True)


def shared_rows(folder: Path) -> list[Status]:
    """Reads the files of all workers and returns the Runs in them.

    In each Status, `point` begins with the name of the worker, and `since` is the time at which
    the stage began, relative to now: -5.0 is five seconds ago.  Skips damaged files, and files that
    no worker wrote.
    """
    try:
        files = sorted(folder.iterdir(), key=lambda file: (len(file.name), file.name))
    except OSError:
        return []
    rows = []
    for file in files:
        name = _NAME.fullmatch(file.name)
        if name is not None:
            rows += [replace(row, point=f"{name[1]} {row.point}") for row in _read(file)]
    return rows


def _write(file: Path, rows: list[Status], now: float) -> None:
    # The clock of another process may have another origin.
    stamp = time.time()
    listed = [
        [row.point, row.run, row.ranks, row.stage, stamp - (now - row.since), row.behind]
        for row in rows[:MAX_ROWS]
    ]
    try:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(listed), encoding="utf-8")
        os.replace(part, file)
    except OSError:  # no such folder on this machine, or no room: the run goes on without lines
        return


def _read(file: Path) -> list[Status]:
    now = time.time()
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(MAX_BYTES))
        rows = [_status(row, now) for row in found[:MAX_ROWS]]
    except (OSError, ValueError, TypeError, RecursionError):
        return []
    return rows


def _status(row: list[Any], now: float) -> Status:
    """Returns the Status in one row of a file, with `since` relative to `now`.

    Raises ValueError or TypeError if the row is malformed.
    """
    point, run, ranks, stage, since, behind = row
    texts = all(isinstance(text, str) for text in (point, run, behind)) and stage in STAGES
    if not texts or type(ranks) is not int or type(since) is not float:
        raise ValueError("not a row of a board")
    return Status(point, run, ranks, stage, min(0.0, since - now), behind)
