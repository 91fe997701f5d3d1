"""On exact numbers no rank sees the result of an asynchronous call before it waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_trainsafe.arithmetic import Doubles, ExactMode
from pytest_trainsafe.arithmetic.errors import InFlightError
from pytest_trainsafe.compat.dispatch_modes import without_modes
from tests.support.launch.in_turn import in_turn

#: What each rank gives, and what it receives.
GIVEN, TOTAL = ([1.0, 2.0], [3.0, 5.0]), [4.0, 7.0]

#: The call on a rank's tensor: a Work, and the tensor that it writes.
Call = Callable[[Any, torch.Tensor], tuple[Any, torch.Tensor]]


def all_reduce(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    return dist.all_reduce(given, async_op=True), given


def reduce_scatter(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    part = given.new_zeros(1)
    return dist.reduce_scatter_tensor(part, given, async_op=True), part


def all_gather(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    whole = given.new_zeros(4)
    return dist.all_gather_into_tensor(whole, given, async_op=True), whole


def all_to_all(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    received = torch.zeros_like(given)
    return dist.all_to_all_single(received, given, async_op=True), received


def broadcast(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    return dist.broadcast(given, 0, async_op=True), given


def exchange(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    received, peer = torch.zeros_like(given), 1 - dist.get_rank()
    calls = [dist.P2POp(dist.isend, given, peer), dist.P2POp(dist.irecv, received, peer)]
    return dist.batch_isend_irecv(calls)[1], received


def coalesced(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    whole = given.new_zeros(4)
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as work:
        dist.all_gather_into_tensor(whole, given)
    return work, whole


class ByTensor:
    """Waits as torch's functional collectives do."""

    def __init__(self, *results: torch.Tensor) -> None:
        self._results = results

    def wait(self) -> None:
        for each in self._results:
            torch.ops._c10d_functional.wait_tensor(each)


def functional_reduce(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    name = dist.group.WORLD.group_name
    result = torch.ops._c10d_functional.all_reduce(given, "sum", name)
    return ByTensor(result), result


def functional_gather(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    name = dist.group.WORLD.group_name
    result = torch.ops._c10d_functional.all_gather_into_tensor(given, 2, name)
    return ByTensor(result), result


def functional_coalesced(dist: Any, given: torch.Tensor) -> tuple[Any, torch.Tensor]:
    name, both = dist.group.WORLD.group_name, [given, given]
    results = torch.ops._c10d_functional.all_gather_into_tensor_coalesced(both, 2, name)
    return ByTensor(*results), results[1]


#: Each call with what rank 1 receives.
CALLS: dict[Call, list[float]] = {
    all_reduce: TOTAL,
    reduce_scatter: TOTAL[1:],
    all_gather: [*GIVEN[0], *GIVEN[1]],
    all_to_all: [GIVEN[0][1], GIVEN[1][1]],
    broadcast: GIVEN[0],
    exchange: GIVEN[0],
    coalesced: [*GIVEN[0], *GIVEN[1]],
    functional_reduce: TOTAL,
    functional_gather: [*GIVEN[0], *GIVEN[1]],
    functional_coalesced: [*GIVEN[0], *GIVEN[1]],
}
#: Those whose result is made by the call, so that nothing is known of its old values.
FUNCTIONAL = (functional_reduce, functional_gather, functional_coalesced)


def seen(mode: ExactMode, call: Call, dtype: torch.dtype, change: bool) -> tuple[Any, Any]:
    """What this rank has before and after the wait; with `change`, it changes what it gave."""
    import torch.distributed as dist

    given = mode.enter(torch.tensor(GIVEN[dist.get_rank()], dtype=dtype))
    work, received = call(dist, given)
    dist.barrier()  # every rank has made the call
    before = received.tolist()
    if change:
        with without_modes():  # as code that the mode does not see
            given.add_(1)
    work.wait()
    return before, received.tolist()


def reduction_before_a_send(mode: ExactMode) -> float:
    """A reduction that one rank begins before a send, and the other after the receive."""
    import torch.distributed as dist

    x, message = mode.enter(torch.ones(1).double()), torch.zeros(1).double()
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        dist.send(message, 1)
        work.wait()
    else:
        dist.recv(message, 0)
        dist.all_reduce(x)
    return float(x)


def other_ways_to_wait(mode: ExactMode) -> list[float]:
    """What is received after the Work has said that it is complete, and from its future."""
    import torch.distributed as dist

    x, y = (mode.enter(torch.ones(1).double()) for _ in range(2))
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    future = dist.all_reduce(y, async_op=True).get_future()
    return [float(x), float(y), float(future.wait()[0])]


def uses_in_flight(mode: ExactMode) -> list[str]:
    """What a rank is told that uses a buffer which a call in flight writes, by use."""
    import torch.distributed as dist

    x, parts = mode.enter(torch.ones(4).double()), torch.zeros(2, dtype=torch.int64)
    works = [
        dist.all_reduce(x[:2], async_op=True),
        dist.all_gather_into_tensor(parts, parts[:1].clone(), async_op=True),
    ]
    told = []
    uses: list[Callable[[], Any]] = [
        *(lambda: x[1:] * 2, lambda: x[:1].add_(1), lambda: parts + 1, lambda: x.sum()),
        # These are harmless.
        *(lambda: x[2:] * 2, lambda: x.view(2, 2), lambda: torch.empty_like(parts)),
    ]
    for use in uses:
        try:
            use()
            told.append("")
        except InFlightError as error:
            told.append(str(error).partition(" ")[0])
    for work in works:
        work.wait()
    assert float(x.sum()) == 6.0
    return told


def changed_send(mode: ExactMode) -> str:
    """What a rank is told that changes what it sends."""
    import torch.distributed as dist

    x, peer = mode.enter(torch.ones(1).double()), 1 - dist.get_rank()
    received = torch.zeros_like(x)
    sent, coming = dist.isend(x, peer), dist.irecv(received, peer)
    assert sent is not None
    assert coming is not None
    x.add_(1)
    coming.wait()
    try:
        sent.wait()
    except InFlightError as error:
        return str(error)
    return ""


def on_rank() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with ExactMode(Doubles()) as mode:
        for call in CALLS:
            for change in (False, True):
                found[f"{call.__name__} {change}"] = seen(mode, call, torch.float64, change)
            if call not in FUNCTIONAL:
                found[f"{call.__name__} of integers"] = seen(mode, call, torch.int64, False)
        found["before a send"] = reduction_before_a_send(mode)
        found["other ways"] = other_ways_to_wait(mode)
        found["uses"] = uses_in_flight(mode)
        found["changed send"] = changed_send(mode)
    return found


def in_process() -> dict[str, Any]:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        return on_rank()
    finally:
        dist.destroy_process_group()


#: What rank 1 of two has seen, by launcher: one group answers all tests.
_seen: dict[str, dict[str, Any]] = {}


@pytest.fixture(params=["processes", "threads"])
def rank(request: pytest.FixtureRequest, torchrun_group: Any) -> dict[str, Any]:
    """What rank 1 of two has seen."""
    if request.param not in _seen:
        if request.param == "processes":
            _seen[request.param] = torchrun_group.run(in_process, world_size=2)[1]
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # newer releases of torch rename collectives
                _seen[request.param] = in_turn(on_rank, 2)[1]
    return _seen[request.param]


@pytest.mark.parametrize("call", CALLS)
def test_a_result_is_there_after_the_wait_and_not_before(rank: dict[str, Any], call: Call) -> None:
    before, after = rank[f"{call.__name__} False"]
    assert after == CALLS[call]
    assert not set(before) & set(after)
    if call not in FUNCTIONAL:
        before, after = rank[f"{call.__name__} of integers"]
        assert after == CALLS[call]
        assert before != after


@pytest.mark.parametrize("call", [each for each in CALLS if each is not exchange])
def test_a_result_whose_input_changed_before_the_wait_is_no_number(
    rank: dict[str, Any], call: Call
) -> None:
    _, after = rank[f"{call.__name__} True"]
    assert all(each != each for each in after)


def test_a_rank_that_changes_what_it_sends_is_told(rank: dict[str, Any]) -> None:
    assert "changed before the program waited" in rank["changed send"]


def test_a_rank_that_uses_what_a_call_in_flight_writes_is_told(rank: dict[str, Any]) -> None:
    assert rank["uses"] == ["aten.mul", "aten.add_", "aten.add", "aten.sum", "", "", ""]


def test_a_reduction_may_begin_before_a_send_that_the_other_rank_receives_first(
    rank: dict[str, Any],
) -> None:
    assert rank["before a send"] == 2.0


def test_a_result_is_there_when_the_work_says_so(rank: dict[str, Any]) -> None:
    assert rank["other ways"] == [2.0, 2.0, 2.0]
