"""A schedule decides when asynchronous collectives happen, and which rank runs next."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_trainsafe.core.schedule import LATE, Schedule
from tests.support.launch.in_turn import in_turn

WORLD = 3
SCHEDULES = [
    Schedule(output=output, taken=taken, seed=seed)
    for output in ("issue", "wait")
    for taken in ("issue", "wait")
    for seed in (None, 1)
]


def correct() -> list[float]:
    """Waits before it reads, and writes nothing in between."""
    found, rank = [], float(dist.get_rank())
    for _ in range(2):
        tensor = torch.full((1,), rank + 1)
        work = dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        work.wait()
        found.append(tensor.item())
    return found


def reads_early() -> float:
    """Reads the result before it waits."""
    tensor = torch.full((1,), float(dist.get_rank() + 1))
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    read = tensor.item()
    work.wait()
    return read


def writes_early() -> float:
    """Changes the input before it waits."""
    given, taken = torch.ones(1), torch.empty(WORLD)
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    work = gather(taken, given, async_op=True)
    given.fill_(5.0)
    dist.barrier()
    work.wait()
    return taken.sum().item()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_correct_program_computes_the_same_in_every_schedule(schedule: Schedule) -> None:
    """Otherwise the schedule would be wrong."""
    assert in_turn(correct, WORLD, schedule) == [[6.0, 6.0]] * WORLD


def test_a_result_is_seen_at_issue_or_at_wait() -> None:
    """So a missing wait shows in one of them."""
    assert in_turn(reads_early, WORLD, Schedule(output="issue")) == [6.0] * WORLD
    assert in_turn(reads_early, WORLD, Schedule(output="wait")) == [1.0, 2.0, 3.0]


def test_a_buffer_that_is_received_into_holds_nan_until_the_wait() -> None:
    """Of a gather and of a receive, so that a read shows even if the old values are right."""

    def program() -> list[bool]:
        rank = dist.get_rank()
        gathered, received = torch.ones(WORLD), torch.ones(1)
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        works = [
            gather(gathered, torch.ones(1), async_op=True),
            dist.irecv(received, (rank - 1) % WORLD),
            dist.isend(torch.ones(1), (rank + 1) % WORLD),
        ]
        dist.barrier()
        early = [bool(each.isnan().all()) for each in (gathered, received)]
        for work in works:
            assert work is not None
            work.wait()
        return [*early, bool((gathered == 1).all()), bool(received == 1)]

    assert in_turn(program, WORLD, Schedule(output="wait")) == [[True] * 4] * WORLD


def test_a_call_that_is_polled_until_it_is_complete_needs_no_wait() -> None:
    """As with gloo, whose result is there when it says so."""

    def program() -> float:
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        return tensor.item()

    assert in_turn(program, WORLD, LATE) == [3.0] * WORLD


def test_an_asynchronous_call_completes_after_what_other_ranks_do_before_their_waits() -> None:
    """So a write that one rank makes too early is seen by all."""

    def program() -> float:
        given, taken = torch.ones(1), torch.empty(WORLD)
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        work = gather(taken, given, async_op=True)
        dist.barrier()
        if dist.get_rank() == 0:
            given.fill_(5.0)
        work.wait()
        return taken.sum().item()

    for seed in range(5):
        assert in_turn(program, WORLD, Schedule("wait", "wait", seed)) == [7.0] * WORLD


def test_an_input_is_taken_at_issue_or_at_wait() -> None:
    """So a write into it before the wait shows in one of them."""
    assert in_turn(writes_early, WORLD, Schedule(taken="issue")) == [3.0] * WORLD
    assert in_turn(writes_early, WORLD, Schedule(taken="wait")) == [15.0] * WORLD


def test_the_order_of_turns_is_drawn_from_the_seed() -> None:
    """The same seed draws the same order."""

    def order(schedule: Schedule) -> list[int]:
        seen: list[int] = []

        def program() -> None:
            for _ in range(4):
                seen.append(dist.get_rank())
                dist.barrier()

        in_turn(program, 4, schedule)
        return seen

    assert order(Schedule()) == order(Schedule())
    assert order(Schedule(seed=3)) == order(Schedule(seed=3))
    assert len({tuple(order(Schedule(seed=seed))) for seed in range(5)}) == 5
