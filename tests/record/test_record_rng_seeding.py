"""A draw has the line that seeded its generator, and the one that set its state after that."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pytest_trainsafe.judges.replay.rng.instrument.ledger import RngLedger
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.trace.rng.events import DrawEvent


class Events(list):
    """Collects the events of the ledger in a list."""

    def add(self, event: object) -> None:
        self.append(event)


def recorded(program: Callable[[], None]) -> list[tuple[str, str]]:
    """For each draw of a program, which of its lines seeded the generator, and set its state.

    Lines are numbered from the program's first one.
    """
    events = Events()
    with RngLedger(events, Clock()).recording():
        program()
    draws = [event for event in events if isinstance(event, DrawEvent) and event.operator]

    def own(line: str) -> str:
        first = program.__code__.co_firstlineno
        return str(int(line.rpartition(":")[2]) - first) if line else ""

    return [(own(draw.seeded), own(draw.restored)) for draw in draws]


def unseeded() -> None:
    torch.rand(3)


def with_torch() -> None:
    torch.manual_seed(1)
    torch.rand(3)
    torch.random.manual_seed(2)
    torch.rand(3)


def with_a_fork() -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        torch.rand(3)
    torch.rand(3)


def with_a_tracker() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    torch.manual_seed(2)
    stream = torch.get_rng_state()
    torch.set_rng_state(before)
    torch.rand(3)
    torch.set_rng_state(stream)
    torch.rand(3)


def with_others() -> None:
    random.seed(1)
    np.random.seed(2)
    random.random()
    np.random.rand()
    random.setstate(random.getstate())
    random.random()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (unseeded, [("", "")]),
        (with_torch, [("1", ""), ("3", "")]),
        (with_a_fork, [("3", ""), ("1", "2")]),
        (with_a_tracker, [("1", "5"), ("3", "7")]),
        (with_others, [("1", ""), ("2", ""), ("1", "5")]),
    ],
)
def test_a_draw_has_the_lines_that_seed_its_generator(
    program: Callable[[], None], expected: list[tuple[str, str]]
) -> None:
    before = torch.get_rng_state()
    assert recorded(program) == expected
    torch.set_rng_state(before)


def test_the_functions_are_restored() -> None:
    before = torch.manual_seed, torch.set_rng_state, random.seed, np.random.seed
    recorded(unseeded)
    assert (torch.manual_seed, torch.set_rng_state, random.seed, np.random.seed) == before
