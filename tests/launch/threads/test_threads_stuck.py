"""Ranks that cannot go on are named at once, with the call and line of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.launch.in_turn import StuckError, in_turn


def operation() -> None:
    tensor = torch.ones(4)
    if dist.get_rank():
        dist.broadcast(tensor, 0)
    else:
        dist.all_reduce(tensor)


def root() -> None:
    dist.broadcast(torch.ones(4), dist.get_rank())


def reduction() -> None:
    op = dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(4), op)


def size() -> None:
    dist.all_reduce(torch.ones(4 - dist.get_rank()))


def dtype() -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if dist.get_rank() else torch.float32))


def splits() -> None:
    sizes = [1, 1] if dist.get_rank() else [2, 1]
    dist.all_to_all_single(torch.empty(2), torch.ones(sum(sizes)), [1, 1], sizes)


def message() -> None:
    if dist.get_rank():
        dist.send(torch.ones(3), 0)
    else:
        dist.recv(torch.ones(4), 1)


#: The program, and what is said of it.
MISMATCHES: list[tuple[Callable[[], None], str]] = [
    (operation, r"rank 0 calls all_reduce\(SUM\) of 4 float32 at .*, but rank 1 calls broadcast"),
    (root, r"rank 0 calls broadcast with root 0 .*, but rank 1 calls broadcast with root 1"),
    (reduction, r"rank 0 calls all_reduce\(SUM\) .*, but rank 1 calls all_reduce\(MAX\)"),
    (size, r"a tensor of 4 float32 cannot be reduced with a tensor of 3 float32"),
    (dtype, r"a tensor of 4 float32 cannot be reduced with a tensor of 4 float64"),
    (splits, r"rank 0 of the group receives \[1, 1\] rows, but is sent \[2, 1\]"),
    (message, r"rank 1 sends \(3,\) of torch.float32 at .*, but rank 0 receives \(4,\)"),
]


def name(value: object) -> str:
    """The id of a program."""
    return getattr(value, "__name__", "")


@pytest.mark.parametrize(("program", "says"), MISMATCHES, ids=name)
def test_a_mismatch_is_named_with_both_calls(program: Any, says: str) -> None:
    """And with the lines of both."""
    with pytest.raises(StuckError, match=says) as caught:
        in_turn(program, 2)
    lines = re.findall(r"test_threads_stuck\.py:(\d+)", str(caught.value))
    assert len(lines) >= 2


def left_out() -> None:
    if dist.get_rank():
        dist.all_reduce(torch.ones(1))


def both_receive() -> None:
    dist.recv(torch.ones(1), 1 - dist.get_rank())


def both_send() -> None:
    dist.send(torch.ones(1), 1 - dist.get_rank())


def other_groups() -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    dist.all_reduce(torch.ones(1), group=groups[dist.get_rank()])


def a_key() -> None:
    store: Any = dist.distributed_c10d._get_default_store()
    store.get("never")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (left_out, [r"rank 1 waits for ranks \[0\] in all_reduce\(SUM\) of 1 float32"]),
        (
            both_receive,
            [r"rank 0 waits for rank 1 in recv from rank 1", r"rank 1 waits for rank 0"],
        ),
        (both_send, [r"rank 0 waits for rank 1 in send to rank 1", r"rank 1 waits for rank 0"]),
        (other_groups, [r"rank 0 waits for ranks \[1\]", r"rank 1 waits for ranks \[0\]"]),
        (a_key, [r"rank 0 waits for the keys \['\S*never'\] of the store", r"rank 1 waits for"]),
    ],
    ids=name,
)
def test_a_deadlock_names_what_each_rank_waits_for(program: Any, says: list[str]) -> None:
    """And the line."""
    with pytest.raises(StuckError) as caught:
        in_turn(program, 2)
    for each in says:
        assert re.search(each, str(caught.value))
    assert re.search(r"test_threads_stuck\.py:\d+", str(caught.value))


def test_the_exception_of_one_rank_is_kept_although_the_others_wait() -> None:
    """The others are stopped."""

    def program() -> None:
        if dist.get_rank() == 1:
            raise ValueError("rank 1 fails")
        dist.all_reduce(torch.ones(1))

    with pytest.raises(ValueError, match="rank 1 fails"):
        in_turn(program, 3)


def test_the_next_group_works_after_one_that_was_stopped() -> None:
    """Nothing is left of it."""

    def program() -> float:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    with pytest.raises(StuckError):
        in_turn(both_receive, 2)
    assert in_turn(program, 2) == [2.0, 2.0]


def test_polling_lets_the_other_ranks_run() -> None:
    """A rank asks whether an asynchronous call is complete until it is."""

    def program() -> float:
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        work.wait()
        return tensor.item()

    assert in_turn(program, 3) == [3.0] * 3
