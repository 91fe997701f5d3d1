"""Values of the ranks' inputs: a sequential tensor is cut as its relation says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pytest_trainsafe.arithmetic import Numbers
from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.relations.pieces import (
    equal_pieces,
    fused_lengths,
    fused_pieces,
    zigzag_pieces,
)
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step

#: Random numbers of a shape, for the terms of a sum; the same in each call.
Draw = Callable[[str, Sequence[int]], torch.Tensor]


def cut(
    name: str,
    tensor: torch.Tensor,
    relation: Relation,
    mesh: RankMesh,
    numbers: Numbers,
    draw: Draw,
) -> list[dict[str, torch.Tensor]]:
    """What each rank holds of the sequential tensor `name`, by the names of its tensors."""
    axes = list(mesh.axes)
    held: list[dict[str, torch.Tensor]] = []
    for coordinate in mesh.coordinates:
        pieces: list[torch.Tensor] | None = [tensor]
        for number, step in enumerate(relation.steps):
            if pieces is None:
                break
            index = coordinate[axes.index(step.axis)] if step.axis else None
            size = mesh.axes[step.axis] if step.axis else len(relation.names)
            pieces = _pieces(name, step, pieces, index, size, numbers, draw, number)
        held.append({} if pieces is None else _named(name, relation, pieces))
    return held


def _named(name: str, relation: Relation, pieces: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    if len(pieces) == 1:
        pieces = pieces * len(relation.names)
    if len(pieces) != len(relation.names):
        raise InputRelationError(f"{shown(name)}: {relation} does not give each tensor a part")
    whole = [each.contiguous() for each in pieces]  # As a rank's own tensors are.
    return dict(zip(relation.names, whole, strict=True))


def _pieces(
    name: str,
    step: Step,
    pieces: list[torch.Tensor],
    index: int | None,
    size: int,
    numbers: Numbers,
    draw: Draw,
    number: int,
) -> list[torch.Tensor] | None:
    """The parts of each piece: that of one rank, or those of all names if `index` is None."""
    if step.kind == "at":
        return pieces if index == step.numbers[0] else None
    if step.kind == "permute":
        back = [step.numbers.index(dim) for dim in range(len(step.numbers))]
        return [each.permute(back) for each in pieces]
    if step.kind == "slice":
        raise InputRelationError(f"{shown(name)}: an input cannot be a slice of other tensors")
    found: list[torch.Tensor] = []
    for each in pieces:
        if step.kind == "concat":
            parts = _parts(name, step, each, size)
        elif step.kind == "sum":
            parts = _terms(name, each, size, numbers, draw, number)
        else:
            raise InputRelationError(f"{shown(name)}: an input cannot be a {step.kind} of others")
        found += parts if index is None else [parts[index]]
    return found


def _parts(name: str, step: Step, tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    """What each rank holds of dimension `dim`."""
    if step.dim >= tensor.ndim or step.dim < -tensor.ndim:
        raise InputRelationError(
            f"{shown(name)} has the shape {list(tensor.shape)}, and no dimension {step.dim}"
        )
    dim, whole = step.dim % tensor.ndim, tensor.shape[step.dim]
    if step.parts:
        return _fused(name, step, tensor, size)
    if whole % (size * step.by):
        raise InputRelationError(
            f"{shown(name)} has the shape {list(tensor.shape)}; dimension {dim} is {whole}, which "
            f"cannot be cut into {step.by * size} equal parts"
        )
    if step.zigzag:
        return zigzag_pieces(tensor, dim, size)
    pieces = equal_pieces(tensor, dim, step.by, size)
    if not step.order:
        return pieces
    return [pieces[step.order.index(rank)] for rank in range(size)]


def _fused(name: str, step: Step, tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    """What each rank holds where its tensor consists of parts, some of them in copies."""
    lengths = fused_lengths(step.parts, size)
    if lengths is None or sum(lengths) != tensor.shape[step.dim]:
        raise InputRelationError(
            f"{shown(name)}: dimension {step.dim} is {tensor.shape[step.dim]}, but {step} makes "
            f"{' + '.join(map(str, lengths or ()))} of {size} ranks"
        )
    return fused_pieces(tensor, step.dim, size, step.parts)


def _terms(
    name: str, tensor: torch.Tensor, size: int, numbers: Numbers, draw: Draw, number: int
) -> list[torch.Tensor]:
    """Random terms, of which the last makes the sum right."""
    if not tensor.is_floating_point():
        raise InputRelationError(f"{shown(name)} is no tensor of floats, so it cannot be a sum")
    terms = [draw(f"{name} term {number} {index}", tensor.shape) for index in range(size - 1)]
    last = tensor
    for each in terms:
        last = numbers.subtract(last, each)
    return [*terms, last]
