"""The ranks that the programs of bench_refine_random.py run on: in a capture, or as real threads.

A program calls the methods of one `Ranks`; each autograd function pairs a collective with that of
its backward, as Megatron's do.  `Captured` sends through torch.distributed, `Threads` through
memory that the threads of one process share, so what it computes does not depend on the project.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

# The names before torch 2.13 are deprecated since.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Cut = Sequence[tuple[int, str]]  # dimension and axis, the outermost first; empty: a replica
Moved = Callable[[torch.Tensor], torch.Tensor]
WAIT_SECONDS = 5.0


class Paired(torch.autograd.Function):
    """A collective whose backward is another one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Moved, backward: Moved) -> torch.Tensor:
        ctx.moved = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.moved(grads[0]), None, None


def _paired(x: torch.Tensor, forward: Moved, backward: Moved) -> torch.Tensor:
    moved: torch.Tensor = Paired.apply(x, forward, backward)
    return moved


def _same(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


class Ranks:
    """One rank of a mesh, and what it can do together with the other ranks of an axis."""

    def __init__(self, rank: int, mesh: Mapping[str, int]) -> None:
        self.rank, self.mesh = rank, dict(mesh)

    def index(self, axis: str) -> int:
        return coordinates(self.rank, self.mesh)[axis]

    def size(self, axis: str) -> int:
        return self.mesh[axis]

    def all_reduce(self, x: torch.Tensor, axis: str, op: str = "sum") -> torch.Tensor:
        raise NotImplementedError

    def all_gather(self, x: torch.Tensor, dim: int, axis: str) -> torch.Tensor:
        raise NotImplementedError

    def reduce_scatter(self, x: torch.Tensor, dim: int, axis: str, op: str = "sum") -> torch.Tensor:
        raise NotImplementedError

    def all_to_all(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        raise NotImplementedError

    def own(self, x: torch.Tensor, dim: int, axis: str, shift: int = 0) -> torch.Tensor:
        """This rank's part of a dimension; `shift` takes that of another rank."""
        return x.chunk(self.size(axis), dim)[(self.index(axis) + shift) % self.size(axis)]

    def copy(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        return _paired(x, _same, lambda grad: self.all_reduce(grad, axis))

    def reduce(self, x: torch.Tensor, axis: str, op: str = "sum") -> torch.Tensor:
        return _paired(x, lambda x: self.all_reduce(x, axis, op), _same)

    def gather(self, x: torch.Tensor, dim: int, axis: str) -> torch.Tensor:
        return _paired(
            x, lambda x: self.all_gather(x, dim, axis), lambda grad: self.own(grad, dim, axis)
        )

    def gather_sum(self, x: torch.Tensor, dim: int, axis: str) -> torch.Tensor:
        return _paired(
            x,
            lambda x: self.all_gather(x, dim, axis),
            lambda grad: self.reduce_scatter(grad, dim, axis),
        )

    def scatter_sum(self, x: torch.Tensor, dim: int, axis: str, op: str = "sum") -> torch.Tensor:
        return _paired(
            x,
            lambda x: self.reduce_scatter(x, dim, axis, op),
            lambda grad: self.all_gather(grad, dim, axis),
        )

    def exchange(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        return _paired(
            x, lambda x: self.all_to_all(x, axis), lambda grad: self.all_to_all(grad, axis)
        )

    def tensor_mlp(
        self,
        x: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        act: Moved,
        axis: str,
        reduced: bool = True,
    ) -> torch.Tensor:
        """`act(x @ up) @ down` of weights that are cut; a capture makes it of DTensors."""
        y = act(self.copy(x, axis) @ up) @ down
        return self.reduce(y, axis) if reduced else y


class Captured(Ranks):
    """A rank of a process group; `style` says which calls of torch.distributed are made."""

    def __init__(self, rank: int, mesh: Mapping[str, int], style: str) -> None:
        super().__init__(rank, mesh)
        self.style = style
        self.device_mesh = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))

    def _group(self, axis: str) -> dist.ProcessGroup:
        return self.device_mesh.get_group(axis)

    def all_reduce(self, x: torch.Tensor, axis: str, op: str = "sum") -> torch.Tensor:
        if self.style == "functional":
            return functional.all_reduce(x, op, self._group(axis))
        done = x.clone().contiguous()
        dist.all_reduce(done, getattr(dist.ReduceOp, op.upper()), self._group(axis))
        return done

    def all_gather(self, x: torch.Tensor, dim: int, axis: str) -> torch.Tensor:
        if self.style == "functional":
            return functional.all_gather_tensor(x.contiguous(), dim, self._group(axis))
        if self.style == "list":
            parts = [torch.empty_like(x.contiguous()) for _ in range(self.size(axis))]
            dist.all_gather(parts, x.contiguous(), self._group(axis))
            return torch.cat(parts, dim)
        first = x.movedim(dim, 0).contiguous()
        whole = first.new_empty(first.size(0) * self.size(axis), *first.shape[1:])
        _gather(whole, first, self._group(axis))
        return whole.movedim(0, dim).contiguous()

    def reduce_scatter(self, x: torch.Tensor, dim: int, axis: str, op: str = "sum") -> torch.Tensor:
        if self.style == "functional":
            return functional.reduce_scatter_tensor(x.contiguous(), op, dim, self._group(axis))
        reduction = getattr(dist.ReduceOp, op.upper())
        if self.style == "list":
            parts = [part.contiguous() for part in x.chunk(self.size(axis), dim)]
            mine = torch.empty_like(parts[0])
            dist.reduce_scatter(mine, parts, reduction, self._group(axis))
            return mine
        first = x.movedim(dim, 0).contiguous()
        mine = first.new_empty(first.size(0) // self.size(axis), *first.shape[1:])
        _scatter(mine, first, reduction, self._group(axis))
        return mine.movedim(0, dim).contiguous()

    def all_to_all(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        if self.style == "functional":
            return functional.all_to_all_single(x.contiguous(), None, None, self._group(axis))
        done = torch.empty_like(x.contiguous())
        if self.style == "list":
            outs = list(done.chunk(self.size(axis)))
            dist.all_to_all(outs, list(x.contiguous().chunk(self.size(axis))), self._group(axis))
            return torch.cat(outs)
        dist.all_to_all_single(done, x.contiguous(), group=self._group(axis))
        return done

    def tensor_mlp(
        self,
        x: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        act: Moved,
        axis: str,
        reduced: bool = True,
    ) -> torch.Tensor:
        mesh = self.device_mesh[axis]

        def of(local: torch.Tensor, placement: Any) -> DTensor:
            return DTensor.from_local(local, mesh, [placement], run_check=False)

        y = act(of(x, Replicate()) @ of(up, Shard(1))) @ of(down, Shard(0))
        assert isinstance(y, DTensor)
        if reduced:
            return y.redistribute(placements=[Replicate()]).to_local()
        assert y.placements == (Partial(),)
        return y.to_local()


class Exchange:
    """What the threads of one run share."""

    def __init__(self, mesh: Mapping[str, int]) -> None:
        self.lock = threading.Lock()
        self.rooms: dict[Any, tuple[threading.Barrier, dict[int, Any]]] = {}

    def room(self, key: Any, members: int) -> tuple[threading.Barrier, dict[int, Any]]:
        with self.lock:
            if key not in self.rooms:
                self.rooms[key] = (threading.Barrier(members, timeout=WAIT_SECONDS), {})
            return self.rooms[key]

    def abort(self) -> None:
        with self.lock:
            for barrier, _ in self.rooms.values():
                barrier.abort()


class Threads(Ranks):
    """A rank that is a thread of this process."""

    def __init__(self, rank: int, mesh: Mapping[str, int], shared: Exchange) -> None:
        super().__init__(rank, mesh)
        self.shared = shared

    def _all(self, kind: str, x: torch.Tensor, axis: str) -> list[torch.Tensor]:
        where = coordinates(self.rank, self.mesh)
        mine = where.pop(axis)
        barrier, slots = self.shared.room((axis, *where.items()), self.size(axis))
        slots[mine] = (kind, x.detach().clone())
        barrier.wait()
        kinds = {each[0] for each in slots.values()}
        values = [slots[number][1] for number in range(self.size(axis))]
        barrier.wait()
        if len(kinds) > 1 or len({each.shape for each in values}) > 1:
            raise RuntimeError(f"collectives differ: {kinds}")
        return values

    def all_reduce(self, x: torch.Tensor, axis: str, op: str = "sum") -> torch.Tensor:
        values = torch.stack(self._all(f"all_reduce {op}", x, axis))
        if op == "max":
            return values.amax(0)
        return values.sum(0) if op == "sum" else values.mean(0)

    def all_gather(self, x: torch.Tensor, dim: int, axis: str) -> torch.Tensor:
        return torch.cat(self._all("all_gather", x, axis), dim)

    def reduce_scatter(self, x: torch.Tensor, dim: int, axis: str, op: str = "sum") -> torch.Tensor:
        values = torch.stack(self._all(f"reduce_scatter {op}", x, axis))
        done = values.sum(0) if op == "sum" else values.mean(0)
        return self.own(done, dim, axis).clone()

    def all_to_all(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        values = self._all("all_to_all", x, axis)
        return torch.cat([self.own(each, 0, axis) for each in values])


def coordinates(rank: int, mesh: Mapping[str, int]) -> dict[str, int]:
    """The rank's index on each axis; the last axis varies fastest."""
    places = list(itertools.product(*(range(size) for size in mesh.values())))
    return dict(zip(mesh, places[rank], strict=True))


def world(mesh: Mapping[str, int]) -> int:
    count = 1
    for size in mesh.values():
        count *= size
    return count


def part_of(whole: torch.Tensor, cut: Cut, rank: int, mesh: Mapping[str, int]) -> torch.Tensor:
    """The rank's part of a tensor."""
    where = coordinates(rank, mesh)
    for dim, axis in cut:
        whole = whole.chunk(mesh[axis], dim)[where[axis]]
    return whole.contiguous()


def differs(
    whole: torch.Tensor, parts: Sequence[torch.Tensor], cut: Cut, mesh: Mapping[str, int]
) -> float:
    """The largest relative difference of a rank's part from its part of the whole."""
    worst = 0.0
    for rank, part in enumerate(parts):
        expected = part_of(whole, cut, rank, mesh)
        if part.shape != expected.shape or not torch.isfinite(part).all():
            return float("inf")
        scale = float(whole.abs().max()) + 1e-6  # rounding is all there is of a zero
        worst = max(worst, float((part - expected).abs().max()) / scale)
    return worst


def run_in_threads(
    program: Callable[..., Mapping[str, torch.Tensor]],
    inputs: Sequence[Mapping[str, torch.Tensor]],
    mesh: Mapping[str, int],
) -> list[Mapping[str, torch.Tensor]]:
    """What each rank returns.  Raises RuntimeError if a rank fails or waits for ever."""
    shared = Exchange(mesh)
    results: dict[int, Mapping[str, torch.Tensor]] = {}
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            results[rank] = program(dict(inputs[rank]), Threads(rank, mesh, shared))
        except Exception as error:
            errors.append(error)
            shared.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"a rank failed: {errors[0]!r}") from errors[0]
    return [results[rank] for rank in range(len(inputs))]
