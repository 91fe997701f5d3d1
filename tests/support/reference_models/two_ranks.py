"""Runs programs of two ranks, one after the other in one group, with a stand-in for the Context."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


class Bare:
    """The members of the Context that these programs use; nothing is recorded."""

    def __init__(self, seed: int) -> None:
        self.seed, self.device = seed, torch.device("cpu")
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.started = False

    def group(self, axis: str) -> Any:
        """The group of all ranks.  In the Context, torch.distributed starts with the first call."""
        self.started = True
        return dist.group.WORLD

    def watch(self, *_: Any, **__: Any) -> None:
        pass

    @contextmanager
    def step(self) -> Iterator[None]:
        yield


def run_all(jobs: list[tuple[str, dict[str, Any]]]) -> list[tuple[list[float], Any, str]]:
    """The losses, the facts and the error of every job, which is a module and its arguments."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    outcomes: list[tuple[list[float], Any, str]] = []
    for module, arguments in jobs:
        program, context = importlib.import_module(module), Bare(seed=3)
        try:
            outcome = program.train(context, **arguments)
        except RuntimeError as error:
            outcomes.append(([], {}, str(error)))
        else:
            outcomes.append((outcome.losses, outcome.facts, ""))
        assert context.started, f"{module} never asks for its group"
    dist.destroy_process_group()
    return outcomes
