"""Meshes: which axes multiply into the world size, in which order of ranks, and what they mean.

Everything that numbers ranks or asks what an axis means asks the mesh of a Point; nothing outside
of this folder fixes names or an order.  Knows nothing of torch.

    declaration   Mesh, what a program declares, and its checks
    numbers       sizes and coordinates, and the ranks along an axis
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
