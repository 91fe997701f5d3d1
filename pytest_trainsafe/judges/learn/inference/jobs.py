"""Learns the invariants of relations, in one process or in several, and keeps the results."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.inference.kept import Kept
from pytest_trainsafe.judges.learn.inference.one_relation import LearnedRelation, learn_relation
from pytest_trainsafe.judges.learn.run import ObservedRun, Source

#: Called with the number of finished relations, the number of all relations, and the name of the
#: relation that finished last.
Progress = Callable[[int, int, str], None]

#: Each run's source (program and configuration) and frames in a worker process, created once for
#: all of its relations.
_frames: list[tuple[Source, Sequence[Frame]]] = []


def run_jobs(
    runs: Sequence[ObservedRun],
    paths: Sequence[str],
    jobs: int,
    progress: Progress | None,
    keep: Path | None,
) -> list[LearnedRelation]:
    """Learn the invariants of the relations with the import paths `paths`, in their order.

    With `keep`, results are read from files in this folder, and new ones are written to it.
    """
    kept = None if keep is None else Kept(keep, runs)
    results: dict[str, LearnedRelation] = {}

    def done(path: str, result: LearnedRelation, fresh: bool = True) -> None:
        results[path] = result
        if fresh and kept is not None:
            kept.write(path, result)
        if progress is not None:
            progress(len(results), len(paths), path.rpartition(":")[2])

    for path in paths:
        known = None if kept is None else kept.read(path)
        if known is not None:
            done(path, known, fresh=False)
    left = [path for path in paths if path not in results]
    if jobs > 1 and len(left) > 1:
        # A forked child of a process with threads may deadlock.
        context = multiprocessing.get_context("spawn")
        workers = min(jobs, len(left))
        with ProcessPoolExecutor(workers, context, _prepare, (list(runs),)) as pool:
            waiting = {pool.submit(_learn, path): path for path in left}
            for future in as_completed(waiting):
                done(waiting[future], future.result())
    elif left:
        frames = _made(runs)
        for path in left:
            done(path, _learned(path, frames))
    return [results[path] for path in paths]


def _made(runs: Sequence[ObservedRun]) -> list[tuple[Source, Sequence[Frame]]]:
    """The source of each run, and the prepared table (Frame) of each of its ranks."""
    return [(run.source, [Frame(table) for table in run.tables]) for run in runs]


def _prepare(runs: Sequence[ObservedRun]) -> None:
    """Prepare a worker process: create a Frame of each rank's table.

    All relations that the process learns use these Frames.
    """
    _frames[:] = _made(runs)


def _learn(path: str) -> LearnedRelation:
    return _learned(path, _frames)


def _learned(path: str, frames: Sequence[tuple[Source, Sequence[Frame]]]) -> LearnedRelation:
    return learn_relation(path, frames)
