"""Graphs of the reference programs' training steps, for `assert_refines`: no process trains.

`captured(gpt.train, {"tp": 2})` captures one whole step on a single device and on each rank:
forward, backward, reduction of gradients, clipping and the optimizer's update.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe.compat.dispatch_modes import without_modes
from pytest_trainsafe.compat.fake_group import fake_group
from pytest_trainsafe.core.mesh import ranks_along
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.graphs.modules import capture
from pytest_trainsafe.record.tracked_point import TrackedCoordinates, TrackedPoint
from pytest_trainsafe.reference_models.datasets import text

Program = Callable[..., None]
#: How the updated value of a parameter is called, and what begins the name of a loss.
NEW, LOSS = "new.", "loss."
#: How the inputs of a forward are called that are no parameters.
BATCH = ("tokens", "targets")


@dataclass(frozen=True)
class Captured:
    """The graphs of a step, and the relation of their inputs and results, as YAML would have it."""

    sequential: Graph
    ranks: Sequence[Graph]
    relation: dict[str, Any]


class _Shapes(BaseException):
    """Ends a program whose parameters are known."""


class _Forward(BaseException):
    """Ends a program whose loss is known."""


class _Context:
    """What a program needs of its Context, to be captured as one rank.

    `given` has the values of parameters by name.  Without it, the program ends as soon as its
    parameters are known.  With `forward`, it ends as soon as its first loss is.
    """

    def __init__(
        self, point: Point, rank: int, given: Mapping[str, Tensor] | None, forward: bool = False
    ) -> None:
        self.point = point
        self.rank = rank
        self.world_size = point.world_size
        self.coordinates = TrackedCoordinates(TrackedPoint(point), rank)
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.seed = 0
        self.given = given
        self.forward = forward
        self.parameters: dict[str, nn.Parameter] = {}
        self.results: dict[str, Tensor] = {}
        self.mesh = _Mesh(self)
        self._groups: dict[tuple[str, ...], Any] = {}

    def group(self, *axes: str) -> Any:
        """The process group of this rank along axes; a DeviceMesh cannot be made in a capture."""
        if axes not in self._groups:
            if axes[0] in self.point.mesh.axes:
                lists = [self._beside(axes)]
            else:
                lists = ranks_along(self.point.sizes, axes[0])
            made = [dist.new_group(ranks) for ranks in lists]
            own = next(number for number, ranks in enumerate(lists) if self.rank in ranks)
            self._groups[axes] = made[own]
        return self._groups[axes]

    def _beside(self, axes: Sequence[str]) -> list[int]:
        """The ranks whose coordinates on all other axes are those of this rank."""
        others = [axis for axis in self.point.mesh.axes if axis not in axes]
        point = TrackedPoint(self.point)
        places = [TrackedCoordinates(point, rank) for rank in range(self.world_size)]
        return [
            rank
            for rank, place in enumerate(places)
            if all(place[axis] == self.coordinates[axis] for axis in others)
        ]

    def enter(self, values: Tensor) -> Tensor:
        return values

    def initialize(self, model: nn.Module, *_: Any, **__: Any) -> None:
        held = {_logical(name): parameter for name, parameter in model.named_parameters()}
        if self.given is None:
            self.parameters = held
            raise _Shapes
        new: dict[int, nn.Parameter] = {}
        for name, parameter in held.items():
            new[id(parameter)] = self.parameters[name] = nn.Parameter(self.given[name])
            vars(self.parameters[name]).update(vars(parameter))
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, new[id(parameter)])

    def watch(self, *_: Any, **__: Any) -> None:
        return None

    def microbatches(self, total: int) -> Sequence[int]:
        share = total // self.point.size("dp")
        first = self.coordinates["dp"] * share
        return range(first, first + share)

    def steps(self, total: int) -> range:
        return range(1)

    @contextmanager
    def step(self) -> Iterator[int]:
        yield 0

    @contextmanager
    def microbatch(self, index: int) -> Iterator[int]:
        yield index

    def loss(self, value: Tensor, microbatch: int) -> None:
        self.results[f"{LOSS}{microbatch}"] = value
        if self.forward:
            raise _Forward

    def before_clip(self, *_: Any) -> None:
        return None

    def grad_norm(self, value: Tensor) -> None:
        self.results["grad_norm"] = value


class _Mesh:
    """Stands for the DeviceMesh of a context: `mesh["dp", "cp"]._flatten(name).get_group()`."""

    def __init__(self, context: _Context, axes: tuple[str, ...] = ()) -> None:
        self.context = context
        self.axes = axes

    def __getitem__(self, axes: tuple[str, ...]) -> _Mesh:
        return _Mesh(self.context, axes)

    def _flatten(self, name: str) -> _Mesh:
        return self

    def get_group(self) -> Any:
        return self.context.group(*self.axes)


def captured(
    program: Program,
    axes: Mapping[str, AxisValue],
    conditions: tuple[Sequence[bool], Sequence[bool]] = ((), ()),
    forward: bool = False,
    **settings: Any,
) -> Captured:
    """The graphs of a program's step on one device and at the Point with these axes.

    A `bug` among the settings is planted in the ranks alone.  `conditions` are those of one device
    and those of the ranks.  With `forward`, a step ends with the loss of its first micro-batch, of
    which all ranks of a Point without pp have theirs, and the batch is an input of the graphs, of
    the settings' `batch_size` and `seq_len`.
    """
    alone, point = Point.of(), Point.of(axes)
    correct = {name: value for name, value in settings.items() if name != "bug"}
    sequential, whole = _rank(program, alone, 0, correct, conditions[0], forward)
    ranks, held = zip(
        *(
            _rank(program, point, rank, settings, conditions[1], forward)
            for rank in range(point.world_size)
        ),
        strict=True,
    )
    names = [axis for axis in point.mesh.axes if point.size(axis) > 1] or ["tp"]
    mesh = _mesh({axis: point.size(axis) for axis in names}, point.size("ep"))
    places = [dict(zip(mesh, each, strict=True)) for each in _coordinates(mesh)]
    inputs = {name: _relation(name, whole[name], held, places, mesh) for name in whole}
    if forward:
        inputs |= dict.fromkeys(BATCH, "replica")
    outputs = (
        {}
        if forward
        else {"grad_norm": "replica"}
        | {
            NEW + name: f"{text.partition(' of ')[0]} of {NEW}{name}"
            for name, text in inputs.items()
        }
    )
    outputs |= {
        name: _of_loss(name, ranks, places, mesh) for name in sequential.outputs
        if name is not None and name.startswith(LOSS)
    }  # fmt: skip
    return Captured(sequential, ranks, {"mesh": mesh, "inputs": inputs, "outputs": outputs})


def _mesh(sizes: Mapping[str, int], ep: int) -> dict[str, int]:
    """The sizes of the mesh, in which ep is an axis of its own where experts have replicas."""
    mesh: dict[str, int] = {}
    for axis, size in sizes.items():
        if axis == "dp" and 1 < ep < size:
            mesh |= {"dp": size // ep, "ep": ep}
        else:
            mesh[axis] = size
    return mesh


def _rank(
    program: Program,
    point: Point,
    rank: int,
    settings: Mapping[str, Any],
    conditions: Sequence[bool],
    forward: bool,
) -> tuple[Graph, dict[str, nn.Parameter]]:
    """The graph of one rank's step, and its parameters."""
    known = _Context(point, rank, None)
    with fake_group(rank, point.world_size), _as_made(), suppress(_Shapes):
        program(known, **settings)

    def step(given: dict[str, Tensor]) -> dict[str, Tensor]:
        context = _Context(point, rank, given, forward)
        if forward:
            with suppress(_Forward), _as_made(given):
                program(context, **settings)
            return context.results
        program(context, **settings)
        updated = {NEW + name: each.detach() for name, each in context.parameters.items()}
        return {**context.results, **updated}

    values = {name: torch.zeros_like(each).double() for name, each in known.parameters.items()}
    if forward:
        shape = settings["batch_size"], settings["seq_len"]
        values |= {name: torch.zeros(shape, dtype=torch.int64) for name in BATCH}
    name = "sequential" if point.world_size == 1 else f"rank {rank}"
    with _as_made():
        graph = capture(
            step, values, rank=rank, ranks=point.world_size, name=name, conditions=conditions
        )
    return graph, known.parameters


@contextmanager
def _as_made(given: Mapping[str, Tensor] | None = None) -> Iterator[None]:
    """Modules are made in float64, and `to` leaves them: it cannot convert what is captured.

    Batches are those that are given, or read outside of the graph, in which their tokens are
    constants.
    """
    read = text.batch

    def batch(*arguments: Any) -> tuple[Tensor, Tensor]:
        if given is not None:
            return given[BATCH[0]], given[BATCH[1]]
        with without_modes():
            return read(*arguments)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            patch.object(nn.Module, "to", lambda module, *_, **__: module),
            patch.object(text, "batch", batch),
        ):
            yield
    finally:
        torch.set_default_dtype(before)


def _logical(name: str) -> str:
    """The name of a parameter without the place of its part in a list of stages."""
    return re.sub(r"^\d+\.", "", name)


def _coordinates(mesh: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(size) for size in mesh.values()))


def _relation(
    name: str,
    whole: nn.Parameter,
    held: Sequence[Mapping[str, nn.Parameter]],
    places: Sequence[Mapping[str, int]],
    mesh: Mapping[str, int],
) -> str:
    """How the ranks hold a parameter: cut over tp as Megatron's attributes say, by some ranks."""
    owners = [place for place, own in zip(places, held, strict=True) if name in own]
    steps = []
    part = next(own[name] for own in held if name in own)
    if part.shape != whole.shape:
        dim, tp = part.partition_dim, mesh["tp"]  # type: ignore[attr-defined]
        blocks = getattr(part, "partition_blocks", ())
        parts = f" parts {'+'.join(str(size // tp) for size in blocks)}" if blocks else ""
        steps.append(f"concat {dim} over tp{parts}")
    return ", ".join([*steps, *_owned(owners, mesh)]) or "replica"


def _owned(owners: Sequence[Mapping[str, int]], mesh: Mapping[str, int]) -> Iterator[str]:
    """The axes along which one coordinate alone holds a tensor."""
    for axis in mesh:
        held_at = {place[axis] for place in owners}
        if len(held_at) == 1 and mesh[axis] > 1:
            yield f"at {axis}={held_at.pop()}"


def _of_loss(
    name: str,
    ranks: Sequence[Graph],
    places: Sequence[Mapping[str, int]],
    mesh: Mapping[str, int],
) -> str:
    """The ranks of a micro-batch report its loss; those of cp, each a term of it."""
    owners = [place for place, graph in zip(places, ranks, strict=True) if name in graph.outputs]
    steps = ["sum over cp"] if "cp" in mesh else []
    return ", ".join([*steps, *_owned(owners, mesh)]) or "replica"
