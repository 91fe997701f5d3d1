"""Declares which parallel configurations (Points) a test covers.  Does not import torch.

Program modules import `requires`, `divides`, `on_mesh` and `Mesh` from here.
"""

from __future__ import annotations

from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import MESH_AXES, AxisValue, Point
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
    "requires",
]
