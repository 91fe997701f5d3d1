"""Stages side by side: each worker is a process with a limit of memory, and is ended in time."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.refine.errors import CannotSayError
from pytest_trainsafe.judges.refine.prove import Proof
from pytest_trainsafe.judges.refine.solver.stages import Stage, stages
from pytest_trainsafe.judges.refine.solver.terms import solver
from pytest_trainsafe.judges.refine.solver.z3 import Answer, answer


@dataclass(frozen=True)
class Limits:
    """Seconds and MiB for one stage, and how many are solved at once."""

    seconds: float = 20.0
    mebibytes: int = 2048
    workers: int = 2


class _Worker:
    """A process that answers one stage after the other."""

    def __init__(self, all_stages: Sequence[Stage], limits: Limits) -> None:
        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, all_stages, limits), daemon=True)
        self.process.start()
        other.close()
        self.stage: int | None = None
        self.deadline = float("inf")

    def give(self, number: int, limits: Limits) -> None:
        self.stage, self.deadline = number, time.monotonic() + limits.seconds
        with suppress(OSError):  # It died before; its end is noticed where it is waited for.
            self.connection.send(number)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _work(connection: Connection, all_stages: Sequence[Stage], limits: Limits) -> None:
    torch.set_num_threads(1)
    _bound_memory(limits.mebibytes)
    while (number := connection.recv()) is not None:
        try:
            found = answer(all_stages[number])
        except MemoryError:
            found = Answer(all_stages[number].tensor, "open", "memory")
        except Exception as error:  # z3 raises its own errors, also where memory ends.
            found = Answer(all_stages[number].tensor, "open", f"z3: {str(error)[:80]}")
        connection.send(found)


def _bound_memory(mebibytes: int) -> None:
    solver().set_param("memory_max_size", mebibytes)
    try:
        import resource
    except ImportError:  # Not on Windows; z3's own limit stays.
        return
    with suppress(ValueError, OSError), open(f"/proc/{os.getpid()}/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (mebibytes << 20),) * 2)


def said(proof: Proof, limits: Limits) -> dict[str, str]:
    """What both engines say of each tensor of a proof: "both", or "field: " and why not z3.

    Raises CannotSayError if they contradict each other.
    """
    found = answers(list(stages(proof.problem, proof.relations)), limits)
    for each in found:
        if each.verdict == "different":
            raise CannotSayError(
                f"the engines do not agree about {each.tensor}: the field proves it, and z3 says: "
                f"{each.reason}"
            )
    return {
        each.tensor: "both" if each.verdict == "equal" else f"field: {each.reason}"
        for each in found
    }


def answers(all_stages: Sequence[Stage], limits: Limits) -> list[Answer]:
    """z3's answers, in the order of the stages.  Raises ArgumentError if z3 is not installed."""
    if solver() is None:
        raise ArgumentError(
            "the second engine needs z3; install it with pip install 'pytest-trainsafe[prove]'"
        )
    found: dict[int, Answer] = {}
    waiting = iter(range(len(all_stages)))
    workers = [_Worker(all_stages, limits) for _ in range(min(limits.workers, len(all_stages)))]
    try:
        for worker in workers:
            worker.give(next(waiting), limits)
        while len(found) < len(all_stages):
            for place, reason in _next(workers):
                worker = workers[place]
                if worker.stage is None:
                    continue
                number = worker.stage
                if isinstance(reason, Answer):
                    found[number] = reason
                else:
                    found[number] = Answer(all_stages[number].tensor, "open", reason)
                    worker.end()
                    worker = workers[place] = _Worker(all_stages, limits)
                worker.stage, worker.deadline = None, float("inf")
                if (following := next(waiting, None)) is not None:
                    worker.give(following, limits)
    finally:
        for worker in workers:
            worker.end()
    return [found[number] for number in range(len(all_stages))]


def _next(workers: Sequence[_Worker]) -> Iterator[tuple[int, Answer | str]]:
    """The workers that answered, ended or took too long, with the answer or the reason."""
    left = min(worker.deadline for worker in workers) - time.monotonic()
    busy = {
        worker.connection: place for place, worker in enumerate(workers) if worker.stage is not None
    }
    ready = wait(list(busy), timeout=max(left, 0.0))
    for each in ready:
        place = busy[each]
        try:
            yield place, workers[place].connection.recv()
        except (EOFError, OSError):
            yield place, "the process ended"
    if not ready:
        now = time.monotonic()
        for place in busy.values():
            if workers[place].deadline <= now:
                yield place, "time"
