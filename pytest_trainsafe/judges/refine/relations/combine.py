"""Makes a sequential tensor of the ranks' tensors, by the steps of a relation.

Used by the search to confirm what it found, by the checker of certificates, and to translate the
ranks' results.  Nothing here looks for a relation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from pytest_trainsafe.arithmetic import Numbers
from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.mesh import Coordinate, RankMesh
from pytest_trainsafe.judges.refine.relations.pieces import blocks, sections, total
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step

Tensors = Mapping[str, object]
Held = dict[Coordinate, list[torch.Tensor]]


def combine(
    relation: Relation, ranks: Sequence[Tensors], mesh: RankMesh, numbers: Numbers
) -> torch.Tensor:
    """The tensor that a relation makes.  Raises InputRelationError if the relation does not fit."""
    held: Held = {}
    for coordinate, values in zip(mesh.coordinates, ranks, strict=True):
        found = [values.get(name) for name in relation.names]
        tensors = [each for each in found if isinstance(each, torch.Tensor)]
        if len(tensors) == len(found):
            held[coordinate] = tensors
    axes = list(mesh.axes)
    for step in reversed(relation.steps):
        held = _stepped(step, held, axes, mesh, numbers)
    if not held:
        raise InputRelationError(f"no rank has all of {', '.join(relation.names)}")
    return _replica(relation, held, axes, mesh)


def _replica(relation: Relation, held: Held, axes: list[str], mesh: RankMesh) -> torch.Tensor:
    if len(held) != math.prod(mesh.axes[axis] for axis in axes):
        raise InputRelationError(f"some ranks do not have {', '.join(relation.names)}")
    first, *others = held.values()
    if len(first) != 1 or not all(same(first[0], each[0]) for each in others):
        raise InputRelationError("the ranks do not hold the same")
    return first[0]


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors have one shape and equal numbers; infinities and NaN by their bits."""
    if x.shape != y.shape or x.is_floating_point() != y.is_floating_point():
        return False
    if x.is_floating_point():
        return bool((_bits(x) == _bits(y)).all())
    return bool((x.to(torch.int64) == y.to(torch.int64)).all())


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int64)


def _stepped(step: Step, held: Held, axes: list[str], mesh: RankMesh, numbers: Numbers) -> Held:
    if step.kind in ("slice", "permute"):
        return {place: [_moved(step, each) for each in found] for place, found in held.items()}
    if not step.axis:
        size = len(next(iter(held.values()), ()))
        return {place: [_joined(step, found, size, numbers)] for place, found in held.items()}
    number = axes.index(step.axis)
    axes.remove(step.axis)
    groups: dict[Coordinate, dict[int, list[torch.Tensor]]] = {}
    for place, found in held.items():
        rest = place[:number] + place[number + 1 :]
        groups.setdefault(rest, {})[place[number]] = found
    size = mesh.axes[step.axis]
    return {
        place: joined
        for place, group in groups.items()
        if (joined := _over_axis(step, group, size, numbers)) is not None
    }


def _over_axis(
    step: Step, group: dict[int, list[torch.Tensor]], size: int, numbers: Numbers
) -> list[torch.Tensor] | None:
    if step.kind == "at":
        return group.get(step.numbers[0])
    if len(group) != size:
        return None
    lists = zip(*(group[index] for index in range(size)), strict=True)
    return [_joined(step, list(each), size, numbers) for each in lists]


def _joined(
    step: Step, tensors: Sequence[torch.Tensor], size: int, numbers: Numbers
) -> torch.Tensor:
    first = tensors[0]
    if step.kind == "concat":
        return _concatenated(step, [tensors[index] for index in step.order or range(size)])
    right = first.dtype is torch.bool if step.kind == "all" else first.is_floating_point()
    if not right or any((each.shape, each.dtype) != (first.shape, first.dtype) for each in tensors):
        raise InputRelationError(f"terms of a {step.kind} of different shapes or kinds")
    return total(tensors, numbers)


def _concatenated(step: Step, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if any(step.dim >= each.ndim or each.ndim != tensors[0].ndim for each in tensors):
        raise InputRelationError(f"a tensor has no dimension {step.dim}")
    dim = step.dim
    try:
        if step.parts:
            return torch.cat(_of_parts(step, tensors), dim)
        if step.by == 1:
            return torch.cat(list(tensors), dim)
        parted = [blocks(each, dim, (step.by, each.shape[dim] // step.by)) for each in tensors]
        if step.zigzag:
            firsts, seconds = zip(*(each.unbind(dim) for each in parted), strict=True)
            return torch.cat((*firsts, *reversed(seconds)), dim)
        return torch.cat(parted, dim + 1).flatten(dim, dim + 1)
    except (RuntimeError, TypeError) as error:
        raise InputRelationError(f"the parts do not fit: {str(error).splitlines()[0]}") from None


def _of_parts(step: Step, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All ranks' first parts, then their second ones; of copies, the first rank's."""
    sizes = [size for size, _ in step.parts]
    split = [sections(each, sizes, step.dim) for each in tensors]
    found = []
    for number, (_, copies) in enumerate(step.parts):
        pieces = [row[number] for row in split]
        for index, piece in enumerate(pieces):
            if not same(piece, pieces[index - index % copies]):
                raise InputRelationError(f"the copies of part {number} differ")
        found += pieces[::copies]
    return found


def _moved(step: Step, tensor: torch.Tensor) -> torch.Tensor:
    try:
        if step.kind == "permute":
            return tensor.permute(step.numbers)
        start, stop = step.numbers
        if stop > tensor.shape[step.dim]:
            raise InputRelationError(f"a slice up to {stop} of {list(tensor.shape)}")
        return tensor.narrow(step.dim, start, stop - start)
    except (RuntimeError, IndexError) as error:
        raise InputRelationError(str(error).splitlines()[0]) from None
