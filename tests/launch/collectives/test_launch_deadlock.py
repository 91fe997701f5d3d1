"""Deadlocked ranks are found from the ledgers and from the calls that ranks are inside of."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.launch.collectives.blocked import (
    UNKNOWN,
    UNKNOWN_STATE,
    Blocked,
    WaitState,
    read_wait_state,
)
from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.launch.collectives.deadlock import deadlock, describe

WORLD = (0, 1, 2)


def call(op: str = "all_reduce", **fields: Any) -> Collective:
    return Collective(**{"group": "0", "ranks": WORLD, "op": op, "site": "a.py:1", **fields})


def send(peer: int, tag: int = 0) -> Collective:
    return call("send", peer=peer, tag=tag)


def recv(peer: int | None = None, tag: int = 0) -> Collective:
    return call("recv", peer=peer, tag=tag)


def stuck(*ledgers: list[Collective], ended: tuple[int, ...] = (), busy: Any = ()) -> set[int]:
    """The deadlocked ranks, if each rank that is not busy is inside its last call."""
    wait_states = [
        UNKNOWN_STATE if rank in busy else WaitState(len(ledger))
        for rank, ledger in enumerate(ledgers)
    ]
    return set(deadlock(ledgers, wait_states, [rank in ended for rank in range(len(ledgers))]))


DEADLOCKED: list[tuple[str, tuple[list[Collective], ...], set[int]]] = [
    ("both receive", ([recv(1)], [recv(0)]), {0, 1}),
    ("other tags", ([send(1, 5)], [recv(0, 6)]), {0, 1}),
    ("both send twice", ([send(1), send(1)], [send(0), send(0)]), {0, 1}),
    ("itself", ([send(0)],), {0}),
    ("a ring", ([recv(1)], [recv(2)], [recv(0)]), {0, 1, 2}),
    ("from any of those who wait", ([recv()], [recv(0)], [recv(0)]), {0, 1, 2}),
    ("a collective and a recv", ([call()], [recv(0)], [call()]), {0, 1, 2}),
    ("other groups", ([call()], [call(group="1")], [call()]), {0, 1, 2}),
    ("a broadcast without all others", ([call("broadcast")], [recv(0)], [recv(0)]), {0, 1, 2}),
]


@pytest.mark.parametrize(
    ("ledgers", "expected"), [row[1:] for row in DEADLOCKED], ids=[row[0] for row in DEADLOCKED]
)
def test_ranks_in_calls_that_can_never_complete_are_deadlocked(
    ledgers: tuple[list[Collective], ...], expected: set[int]
) -> None:
    assert stuck(*ledgers) == expected


MAY_COMPLETE: list[tuple[str, tuple[list[Collective], ...]]] = [
    ("a send and its recv", ([send(1)], [recv(0)])),
    ("the last to come", ([call()], [call()], [call()])),
    ("a send to a recv from any", ([send(1)], [recv()])),
    ("whom a recv from any may have met", ([recv(2)], [call()], [send(0), call()])),
    ("a broadcast's root may go on before a rank comes", ([call("broadcast")], [recv(0)])),
    ("a chain to one who is met", ([send(1)], [recv(0)], [recv(0)])),
]


@pytest.mark.parametrize(
    "ledgers", [row[1] for row in MAY_COMPLETE], ids=[row[0] for row in MAY_COMPLETE]
)
def test_ranks_in_calls_that_may_complete_are_not_deadlocked(
    ledgers: tuple[list[Collective], ...],
) -> None:
    # ranks without a ledger here are busy
    assert stuck(*ledgers, *[[]] * (3 - len(ledgers)), busy=range(len(ledgers), 3)) == set()


def test_ranks_that_wait_for_a_busy_rank_are_not_deadlocked() -> None:
    assert stuck([recv(1)], [call()], [recv(0)], busy=[1]) == set()
    assert stuck([call()], [], [call()], busy=[1]) == set()


def test_ranks_that_wait_for_an_ended_rank_are_deadlocked() -> None:
    assert stuck([call()], [], [recv(0)], ended=(1,)) == {0, 2}
    assert stuck([recv()], [], [], ended=(1, 2)) == {0}
    assert stuck([recv()], [], [], ended=(1,), busy=[2]) == set()


def test_some_ranks_can_be_deadlocked_while_another_rank_computes() -> None:
    assert stuck([recv(1)], [recv(0)], [], busy=[2]) == {0, 1}


def test_a_wait_for_unknown_work_counts_as_the_ranks_first_incomplete_call() -> None:
    ledgers = [[call(), recv(1)], [call(), recv(0)], [call()]]
    wait_states = [WaitState(UNKNOWN), WaitState(2), UNKNOWN_STATE]
    waits = deadlock(ledgers, wait_states, [False] * 3)
    assert waits[0].call == recv(1)
    assert set(waits) == {0, 1}
    ledgers[0] = [call()]
    assert deadlock(ledgers, wait_states, [False] * 3) == {}


def test_no_deadlock_is_reported_if_other_threads_of_a_rank_may_communicate() -> None:
    wait_states = [WaitState(1), WaitState(1, threads=True)]
    assert deadlock([[recv(1)], [recv(0)]], wait_states, [False] * 2) == {}


def test_no_deadlock_is_reported_while_a_call_is_missing_from_its_ledger() -> None:
    assert deadlock([[recv(1)], [recv(0)]], [WaitState(2), WaitState(1)], [False] * 2) == {}


def test_a_large_deadlock_is_described_in_bounded_length() -> None:
    world = tuple(range(64))
    ledgers = [[recv((rank + 1) % 64)] for rank in world]
    (text,) = describe(deadlock(ledgers, [WaitState(1)] * 64, [False] * 64))
    assert text.endswith("; and 56 more")
    assert describe({}) == []


@pytest.fixture
def no_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide threads that earlier tests left in this process, such as a session's thread pool."""
    kept = set(threading.enumerate()) - {threading.main_thread()}
    real = threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [t for t in real() if t not in kept])


@pytest.mark.usefixtures("no_other_threads")
def test_the_call_of_the_main_thread_can_be_read_until_it_returns(tmp_path: Path) -> None:
    path = tmp_path / "blocked"
    assert read_wait_state(path) == UNKNOWN_STATE
    blocked = Blocked(path)
    blocked.enter(7)
    assert read_wait_state(path) == WaitState(7, 1)
    if (child := os.fork()) == 0:
        blocked.enter(9)  # a process that the program forks is no rank
        os._exit(0)
    os.waitpid(child, 0)
    assert read_wait_state(path) == WaitState(7, 1)
    blocked.leave()
    assert read_wait_state(path) == WaitState(0, 2)


@pytest.mark.usefixtures("no_other_threads")
def test_calls_of_other_threads_are_recorded_and_data_loader_threads_are_ignored(
    tmp_path: Path,
) -> None:
    done = threading.Event()
    feeder = threading.Thread(target=done.wait, name="QueueFeederThread")
    feeder.start()
    blocked = Blocked(tmp_path / "blocked")
    blocked.enter(1)
    assert not read_wait_state(tmp_path / "blocked").threads
    done.set()
    feeder.join()
    other = threading.Thread(target=blocked.enter, args=[2])
    other.start()
    other.join()
    assert read_wait_state(tmp_path / "blocked") == WaitState(0, 2, threads=True)
