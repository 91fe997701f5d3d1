"""Writes traces of a few module calls, tensor by tensor, for tests of localisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Caller
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import ModuleEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest
from tests.support.compare.traces import draw

SINGLE = Point.of()

#: Changes what a rank records: given its coordinates and its part, returns the part to record.
Change = Callable[[dict[str, int], torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Flow:
    """A tensor that enters or leaves a module.

    `tensor` is the logical tensor, of which each rank records the part that `layout` gives it.
    `stage` is the only pipeline stage that records it; None for all stages.
    """

    id: TensorId
    tensor: torch.Tensor
    layout: Layout = ()
    source: str = "attribute"
    stage: int | None = None
    change: Change = lambda at, part: part


def flow(module: str, name: str = "output", kind: Kind = "activation", call: int = 0) -> TensorId:
    """The id of a tensor of the first micro-batch."""
    return TensorId(0, 0, kind, module, name, call)


def values(name: str, *shape: int) -> torch.Tensor:
    """Normal values that depend only on the name and the shape."""
    return draw(name, shape)


def write(
    path: Path,
    flows: Iterable[Flow],
    point: Point = SINGLE,
    modules: Mapping[str, int | None] | None = None,
    callers: Mapping[str, str] | None = None,
    identity: Iterable[tuple[str, int]] = (),
) -> Trace:
    """Writes what each rank of `point` records, and opens it.

    `modules` maps each module to its only pipeline stage, or to None for all stages; by default all
    modules of `flows` are on all stages.  `identity` lists pairs of a module and a stage where an
    `nn.Identity` has its place.
    """
    flows = list(flows)
    if modules is None:
        modules = dict.fromkeys(["", *(f.id.module for f in flows)])
    spec = RunSpec(program="m.train", axes=point.values, mesh=point.mesh.declared, dtype="float64")
    write_manifest(path, manifest_of(spec, "cpu"))
    for rank in range(point.world_size):
        at = point.coordinates(rank)
        writer = RankWriter(path, rank)
        for module, stage in modules.items():
            if stage in (None, at["pp"]):
                writer.add(ModuleEvent(module, module.capitalize() or "Model", "model.py:1"))
        for module, stage in identity:
            if stage == at["pp"]:
                writer.add(ModuleEvent(module, "Identity", "model.py:1"))
        for module, by in (callers or {}).items():
            writer.add(Caller(module, by))
        for each in flows:
            if each.stage in (None, at["pp"]):
                part = extract(each.tensor, each.layout, at, point.sizes).clone()
                writer.add_tensor(each.id, each.change(at, part), each.layout, each.source)
        writer.close()
    return Trace.open(path)


def rung(
    directory: Path,
    reference: Iterable[Flow],
    candidate: Iterable[Flow],
    point: Point,
    callers: Mapping[str, str] | None = None,
) -> RungTraces:
    """A candidate at `point` and its reference, with a perturbed reference that allows rounding."""
    reference, candidate = list(reference), list(candidate)
    modules: dict[str, int | None] = dict.fromkeys(
        ["", *(f.id.module for f in (*reference, *candidate))]
    )
    noisy = [
        dataclasses.replace(each, tensor=each.tensor * (1 + 2**-50))
        if each.tensor.is_floating_point()
        else each
        for each in reference
    ]
    return RungTraces(
        "float64",
        write(directory / "candidate", candidate, point, modules, callers),
        write(directory / "reference", reference, SINGLE, modules, callers),
        write(directory / "perturbed", noisy, SINGLE, modules, callers),
    )
