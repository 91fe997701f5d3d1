"""Declares which parallel configurations a test covers.  Makes Points; does not import torch.

Program modules import `requires`, `divides`, `on_mesh` and `Mesh` from here.
"""

from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import MESH_AXES, AxisValue, Point
from pytest_trainsafe.sweep import relations
from pytest_trainsafe.sweep.traits import on_mesh
from pytest_trainsafe.sweep.validity import Rule, divides, requires

__all__ = [
    "MESH_AXES",
    "AxisValue",
    "Mesh",
    "Point",
    "Rule",
    "divides",
    "on_mesh",
    "relations",
    "requires",
]
