"""Rebuilds sequential results from the tensors of all ranks, by the relations of a certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from pytest_trainsafe.arithmetic import Doubles
from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.relations.combine import combine
from pytest_trainsafe.judges.refine.relations.parse import parse_relation
from pytest_trainsafe.judges.refine.relations.relation import Relation


def translate(
    outputs: Mapping[str, str],
    axes: Mapping[str, int],
    shrunk: bool,
    ranks: Sequence[Mapping[str, torch.Tensor]],
) -> dict[str, torch.Tensor]:
    """The sequential results, by name, as the ranks' tensors make them; floats are float64.

    `outputs` has the relation of each result, `axes` the sizes of the mesh, and `shrunk` says
    whether the relations were found in shrunk sizes.  `ranks` has for each rank its tensors by the
    names of its graph; replicas must be equal.
    Raises ArgumentError for tensors that do not fit, and for a relation whose blocks or parts are
    known in shrunk sizes only.
    """
    mesh = RankMesh(axes)
    if len(ranks) != mesh.size:
        raise ArgumentError(f"translate was given {len(ranks)} ranks, not {mesh.size}")
    held = [{name: _wide(each) for name, each in tensors.items()} for tensors in ranks]
    found = {}
    for name, text in outputs.items():
        relation = parse_relation(text, name, mesh.axes)
        if shrunk and not _free_of_sizes(relation):
            raise ArgumentError(f"{shown(name)} is {relation}, in sizes that were shrunk")
        try:
            found[name] = combine(relation, held, mesh, Doubles())
        except InputRelationError as error:
            raise ArgumentError(f"{shown(name)} is {relation}: {error}") from None
    return found


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.detach().double() if x.is_floating_point() else x


def _free_of_sizes(relation: Relation) -> bool:
    return not any(
        step.parts or (step.by > 1 and not step.zigzag) or step.kind == "slice"
        for step in relation.steps
    )
