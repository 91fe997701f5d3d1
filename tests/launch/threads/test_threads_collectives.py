"""Each collective of ranks that run in turn gives what its definition says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.launch.in_turn import in_turn

pytestmark = pytest.mark.parametrize("world", [2, 3, 4])

SIZE = 3

#: The names of newer releases of torch, which warn if the older ones are used.
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
COALESCED = dist.distributed_c10d._coalescing_manager
SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def given(rank: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What a rank gives."""
    made = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(SIZE, generator=made, dtype=torch.float64).to(dtype)


def all_given(world: int, seed: int = 0) -> list[torch.Tensor]:
    """What all ranks give."""
    return [given(rank, seed=seed) for rank in range(world)]


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SUM": lambda terms: terms.sum(0),
    "AVG": lambda terms: terms.mean(0),
    "PRODUCT": lambda terms: terms.prod(0),
    "MIN": lambda terms: terms.amin(0),
    "MAX": lambda terms: terms.amax(0),
}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("is_async", [False, True])
def test_all_reduce_reduces_in_place(world: int, op: str, is_async: bool) -> None:
    """Of every op, waited for at once or later."""

    def program() -> torch.Tensor:
        tensor = given(dist.get_rank())
        work = dist.all_reduce(tensor, getattr(dist.ReduceOp, op), async_op=is_async)
        if work is not None:
            work.wait()
        return tensor

    expected = REDUCTIONS[op](torch.stack(all_given(world)))
    for found in in_turn(program, world):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
def test_all_reduce_combines_bits(world: int, op: str) -> None:
    """Of integers."""

    def program() -> int:
        tensor = torch.tensor([5 + 3 * dist.get_rank()])
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        return int(tensor)

    combine = {"BAND": int.__and__, "BOR": int.__or__, "BXOR": int.__xor__}[op]
    expected = 5
    for rank in range(1, world):
        expected = combine(expected, 5 + 3 * rank)
    assert in_turn(program, world) == [expected] * world


def test_reduce_writes_on_the_root_only(world: int) -> None:
    """The others keep what they gave."""

    def program() -> torch.Tensor:
        tensor = given(dist.get_rank())
        dist.reduce(tensor, dst=1)
        return tensor

    found = in_turn(program, world)
    torch.testing.assert_close(found[1], torch.stack(all_given(world)).sum(0))
    assert all(torch.equal(found[r], given(r)) for r in range(world) if r != 1)


def test_broadcast_copies_the_roots_tensor(world: int) -> None:
    """From any root."""

    def program() -> torch.Tensor:
        tensor = given(dist.get_rank())
        dist.broadcast(tensor, src=world - 1)
        return tensor

    assert all(torch.equal(each, given(world - 1)) for each in in_turn(program, world))


def test_gathers_order_parts_by_rank(world: int) -> None:
    """As a list, as one tensor, and of objects."""

    def program() -> list[torch.Tensor]:
        rank = dist.get_rank()
        parts = [torch.empty(SIZE, dtype=torch.float64) for _ in range(world)]
        dist.all_gather(parts, given(rank))
        whole = torch.empty(world * SIZE, dtype=torch.float64)
        GATHER(whole, given(rank))
        stacked = torch.empty(world, SIZE, dtype=torch.float64)
        GATHER(stacked, given(rank))
        objects: list[Any] = [None] * world
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": r} for r in range(world)]
        return [torch.cat(parts), whole, stacked.view(-1)]

    expected = torch.cat(all_given(world))
    for each in in_turn(program, world):
        assert all(torch.equal(found, expected) for found in each)


def test_reduce_scatter_gives_each_rank_its_part(world: int) -> None:
    """Of a list and of one tensor."""

    def program() -> tuple[torch.Tensor, torch.Tensor]:
        rank = dist.get_rank()
        parts = [given(rank, seed=to) for to in range(world)]
        one, two = torch.empty(SIZE, dtype=torch.float64), torch.empty(SIZE, dtype=torch.float64)
        dist.reduce_scatter(one, parts)
        SCATTER(two, torch.cat(parts))
        return one, two

    for rank, found in enumerate(in_turn(program, world)):
        expected = torch.stack(all_given(world, seed=rank)).sum(0)
        for each in found:
            torch.testing.assert_close(each, expected)


def test_coalesced_collectives_are_as_many_collectives(world: int) -> None:
    """Of reductions, gathers and scatters."""

    def program() -> list[torch.Tensor]:
        rank = dist.get_rank()
        sums = [given(rank, seed=n) for n in range(2)]
        with COALESCED():
            for each in sums:
                dist.all_reduce(each)
        wholes = [torch.empty(world * SIZE, dtype=torch.float64) for _ in range(2)]
        with COALESCED():
            for n, whole in enumerate(wholes):
                GATHER(whole, given(rank, seed=n))
        parts = [torch.empty(SIZE, dtype=torch.float64) for _ in range(2)]
        with COALESCED():
            for n, part in enumerate(parts):
                every = torch.cat([given(rank, seed=10 * n + to) for to in range(world)])
                SCATTER(part, every)
        return [*sums, *wholes, *parts]

    for rank, found in enumerate(in_turn(program, world)):
        sums = [torch.stack(all_given(world, n)).sum(0) for n in range(2)]
        wholes = [torch.cat(all_given(world, n)) for n in range(2)]
        parts = [torch.stack(all_given(world, 10 * n + rank)).sum(0) for n in range(2)]
        for each, expected in zip(found, [*sums, *wholes, *parts], strict=True):
            torch.testing.assert_close(each, expected)


def test_gather_and_scatter_go_to_and_from_the_root(world: int) -> None:
    """Of tensors and of objects."""

    def program() -> tuple[Any, torch.Tensor, Any, Any]:
        rank = dist.get_rank()
        root = rank == 1
        parts = [torch.empty(SIZE, dtype=torch.float64) for _ in range(world)] if root else None
        dist.gather(given(rank), parts, dst=1)
        own = torch.empty(SIZE, dtype=torch.float64)
        dist.scatter(own, all_given(world, seed=5) if root else None, src=1)
        objects: list[Any] = [None] * world
        dist.gather_object(rank, objects if root else None, dst=1)
        received = [None]
        dist.scatter_object_list(received, list(range(world)) if root else None, src=1)
        told = [rank]
        dist.broadcast_object_list(told, src=1)
        return parts, own, (objects if root else None, received[0]), told[0]

    found = in_turn(program, world)
    for rank, (parts, own, (objects, received), told) in enumerate(found):
        assert torch.equal(own, given(rank, seed=5))
        assert received == rank
        assert told == 1
        if rank == 1:
            assert torch.equal(torch.cat(parts), torch.cat(all_given(world)))
            assert objects == list(range(world))


def test_all_to_all_exchanges_parts(world: int) -> None:
    """As lists, as rows, and as rows of which each rank receives another number."""

    def program() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rank = dist.get_rank()
        gives = [given(rank, seed=to) for to in range(world)]
        takes = [torch.empty(SIZE, dtype=torch.float64) for _ in range(world)]
        dist.all_to_all(takes, gives)
        rows = torch.empty(world, SIZE, dtype=torch.float64)
        dist.all_to_all_single(rows, torch.stack(gives))
        uneven = torch.cat([given(rank, seed=to).expand(to + 1, SIZE) for to in range(world)])
        received = torch.empty(world * (rank + 1), SIZE, dtype=torch.float64)
        sizes = [to + 1 for to in range(world)]
        dist.all_to_all_single(received, uneven, [rank + 1] * world, sizes)
        return torch.stack(takes), rows, received

    for rank, (takes, rows, received) in enumerate(in_turn(program, world)):
        expected = torch.stack([given(source, seed=rank) for source in range(world)])
        assert torch.equal(takes, expected)
        assert torch.equal(rows, expected)
        assert torch.equal(received, expected.repeat_interleave(rank + 1, 0))


def test_sends_meet_their_receives(world: int) -> None:
    """In order, by tag, from any rank, and in batches."""

    def program() -> list[float]:
        rank, found = dist.get_rank(), []
        after, before = (rank + 1) % world, (rank - 1) % world
        into = torch.empty(1)
        works: list[Any] = [dist.irecv(into, before)]
        works.append(dist.isend(torch.tensor([float(rank)]), after))
        assert [work.wait() for work in works] == [True, True]
        found.append(into.item())
        first, second = torch.empty(1), torch.empty(1)
        ops = [
            dist.P2POp(dist.isend, torch.tensor([10.0 + rank]), after),
            dist.P2POp(dist.isend, torch.tensor([20.0 + rank]), after),
            dist.P2POp(dist.irecv, first, before),
            dist.P2POp(dist.irecv, second, before),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        found += [first.item(), second.item()]
        if rank == 0:
            two, one = torch.empty(1), torch.empty(1)
            assert dist.recv(two, 1, tag=2) == 1
            dist.recv(one, 1, tag=1)
            found += [two.item(), one.item()]
            sources = {dist.recv(torch.empty(1)) for _ in range(1, world)}
            assert sources == set(range(1, world))
        else:
            if rank == 1:
                late: Any = dist.isend(torch.tensor([1.0]), 0, tag=1)
                dist.send(torch.tensor([2.0]), 0, tag=2)
                late.wait()
            dist.send(torch.tensor([float(rank)]), 0)
        return found

    for rank, found in enumerate(in_turn(program, world)):
        before = float((rank - 1) % world)
        assert found[:3] == [before, 10 + before, 20 + before]
        assert found[3:] == ([2.0, 1.0] if rank == 0 else [])


def test_barriers_wait_for_every_rank(world: int) -> None:
    """All ranks are before a barrier when the first is behind it."""
    before: set[int] = set()

    def program() -> int:
        before.add(dist.get_rank())
        dist.barrier()
        seen = len(before)
        dist.monitored_barrier()
        return seen

    assert in_turn(program, world) == [world] * world


def test_a_group_has_its_own_ranks(world: int) -> None:
    """A part of the ranks, with and without a call of the others, and of a mesh."""

    def program() -> tuple[float, float, float, tuple[int, ...]]:
        rank = dist.get_rank()
        pair = dist.new_group([0, 1])
        tensor = torch.tensor([float(rank + 1)])
        if rank < 2:
            dist.all_reduce(tensor, group=pair)
        local = torch.tensor([float(rank + 1)])
        if rank < 2:
            only = dist.new_group([0, 1], use_local_synchronization=True)
            dist.all_reduce(local, group=only)
        mesh = dist.device_mesh.init_device_mesh("cpu", (world, 1), mesh_dim_names=("dp", "tp"))
        along = torch.tensor([float(rank + 1)])
        dist.all_reduce(along, group=mesh.get_group("dp"))
        place = tuple(mesh.get_coordinate() or ())
        return tensor.item(), local.item(), along.item(), place

    for rank, (pair, local, along, place) in enumerate(in_turn(program, world)):
        assert pair == local == (3.0 if rank < 2 else rank + 1)
        assert along == world * (world + 1) / 2
        assert place == (rank, 0)


def test_functional_collectives_return_new_tensors(world: int) -> None:
    """What DTensor uses."""
    from torch.distributed import _functional_collectives as funcol

    def program() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        group: Any = dist.group.WORLD
        rank = dist.get_rank()
        total = funcol.all_reduce(given(rank), "sum", group)
        gather = getattr(funcol, "all_gather_single", None) or funcol.all_gather_tensor
        scatter = getattr(funcol, "reduce_scatter_single", None) or funcol.reduce_scatter_tensor
        whole = gather(given(rank), 0, group)
        part = scatter(whole.clone(), "sum", 0, group)
        return total + 0, whole + 0, part + 0

    for rank, (total, whole, part) in enumerate(in_turn(program, world)):
        torch.testing.assert_close(total, torch.stack(all_given(world)).sum(0))
        assert torch.equal(whole, torch.cat(all_given(world)))
        torch.testing.assert_close(part, given(rank) * world)


def test_process_groups_can_be_destroyed_and_started_again(world: int) -> None:
    """By each of the ways in which a program starts them."""

    def program() -> list[float]:
        found = []
        for how in ({}, {"backend": "cpu:gloo"}, {"init_method": "env://", "backend": "gloo"}):
            arguments: dict[str, Any] = how
            dist.init_process_group(**arguments)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            found.append(tensor.item())
            assert dist.get_world_size() == world
            dist.destroy_process_group()
            assert not dist.is_initialized()
        return found

    assert in_turn(program, world, start=False) == [[world] * 3] * world
