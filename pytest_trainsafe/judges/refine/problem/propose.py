"""Proposes relations of inputs, where names and shapes leave one possibility."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step


def proposed(inputs: Iterable[Node], ranks: Sequence[Graph], mesh: RankMesh) -> dict[str, Relation]:
    """For each input a replica or a concat over one axis of the ranks' inputs of its name.

    Raises InputRelationError where neither fits, or several axes do.
    """
    return {node.name: _proposal(node, ranks, mesh) for node in inputs}


def _proposal(node: Node, ranks: Sequence[Graph], mesh: RankMesh) -> Relation:
    others = [graph.by_name.get(node.name) for graph in ranks]
    shapes = {each.shape for each in others if each is not None}
    if None in others or len(shapes) != 1 or node.shape is None:
        raise InputRelationError(
            f"no relation of {shown(node.name)} can be proposed: not every rank has an input of "
            "this name and of one shape; declare its relation"
        )
    (shape,) = shapes
    if shape == node.shape:
        return Relation((), (node.name,))
    possible = [
        Step("concat", axis, dim)
        for axis, size in mesh.axes.items()
        for dim in range(len(node.shape))
        if size > 1 and shape == _cut(node.shape, dim, size)
    ]
    if len(possible) != 1:
        raise InputRelationError(
            f"no relation of {shown(node.name)} can be proposed: its shape is {list(node.shape)}, "
            f"and that of the ranks {list(shape or ())}; declare its relation"
        )
    return Relation((possible[0],), (node.name,))


def _cut(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...] | None:
    if shape[dim] % size:
        return None
    return (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])
