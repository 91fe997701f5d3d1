"""Runs functions as the ranks of a group, in threads of this process: for tests of the parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from pytest_trainsafe.compat.distributed import rank_worlds
from pytest_trainsafe.core.rank import Rank, become
from pytest_trainsafe.core.rank import state as rank_state
from pytest_trainsafe.core.schedule import Schedule
from pytest_trainsafe.launch.collectives import ledger
from pytest_trainsafe.launch.threads.exchange import Exchange, Output, parts
from pytest_trainsafe.launch.threads.install import install
from pytest_trainsafe.launch.threads.schedule import Order
from pytest_trainsafe.launch.threads.turns import Stopped, Turns

#: NumPy's stubs do not export its functions for the global generator.
_numpy: Any = np.random


class StuckError(Exception):
    """No rank could go on; the message has the sentences of the ranks."""


def in_turn(
    program: Callable[[], Any], world: int, schedule: Schedule | None = None, start: bool = True
) -> list[Any]:
    """Runs a program as `world` ranks; returns what each returned.

    Raises the first exception of a rank, or StuckError if the group could not go on.  With
    `start`, the program has a default process group.
    """
    schedule = schedule or Schedule()
    values: list[Any] = [None] * world
    errors: list[BaseException] = []
    stuck: list[str] = []
    with _restored():
        exchange = Exchange(parts(Output()))
        turns = Turns(Order(schedule), exchange, stuck.extend)
        for rank in range(world):
            exchange.prepare(rank, partial(_begin, rank, world))
        install(turns, schedule)

        def body(rank: int) -> None:
            try:
                with torch.autograd.set_multithreading_enabled(False):
                    if start:
                        dist.init_process_group("gloo")
                    values[rank] = program()
            except Stopped:
                pass
            except BaseException as error:
                errors.append(error)

        turns.run([partial(body, rank) for rank in range(world)])
    if errors:
        raise errors[0]
    if stuck:
        raise StuckError("; ".join(stuck))
    return values


def _begin(rank: int, world: int) -> None:
    become(Rank(rank, world, rank, world))
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(world)
    torch.manual_seed(0)


@contextmanager
def _restored() -> Iterator[None]:
    """Restores what `install` and the turns change in this process."""
    ledger.wrap()  # for good, because that happens once; so the values to restore are wrapped ones
    everything = Exchange(parts(Output()))
    before = [part.save() for part in everything._parts]
    owners = [(c10d, "_new_process_group_helper"), (ledger, "_connect")]
    kept = [(owner, name, getattr(owner, name)) for owner, name in owners]
    finders = list(sys.meta_path)
    rng, generator = torch.get_rng_state(), _numpy.get_bit_generator()
    # What earlier tests replaced is no rank's: a rank would begin with the originals of that time,
    # and undo what `install` replaces.
    replaced = dict(rank_state.replaced)
    rank_state.replaced.clear()
    try:
        yield
    finally:
        inside = dict(rank_state.replaced)
        rank_state.replaced.clear()
        rank_state.replaced.update(replaced | inside)
        everything._restore(before)
        for owner, name, value in kept:
            setattr(owner, name, value)
        sys.meta_path[:] = finders
        rank_state.on_declared.clear()
        rank_worlds.isolate_threads(False)
        torch.set_rng_state(rng)
        _numpy.set_bit_generator(generator)
