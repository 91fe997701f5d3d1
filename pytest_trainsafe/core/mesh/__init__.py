"""Meshes: the axes that multiply into the world size, their rank order, and their roles.

A role says what an axis is for: data, context, tensor or pipeline parallelism (dp, cp, tp, pp).

All code that numbers ranks or needs the meaning of an axis uses the mesh of a Point; no axis name
or order is fixed outside of this folder. Does not depend on torch.

    declaration  Mesh, which a program declares, and its checks
    numbers      sizes and coordinates, and the ranks along an axis
"""

from pytest_trainsafe.core.mesh.declaration import DEFAULT, ROLES, TAKEN, Mesh, MeshAxis
from pytest_trainsafe.core.mesh.numbers import (
    OverMesh,
    coordinates_over,
    elsewhere,
    mesh_of,
    moved,
    number_over,
    rank_at,
    ranks_along,
    sizes_over,
)

__all__ = [
    "DEFAULT",
    "ROLES",
    "TAKEN",
    "Mesh",
    "MeshAxis",
    "OverMesh",
    "coordinates_over",
    "elsewhere",
    "mesh_of",
    "moved",
    "number_over",
    "rank_at",
    "ranks_along",
    "sizes_over",
]
