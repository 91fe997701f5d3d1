"""Declares which parallel configurations (Points) a test covers.  Does not import torch.

Program modules import `requires`, `divides`, `on_mesh`, `relations` and `Mesh` from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import MESH_AXES, AxisValue, Point
from pytest_trainsafe.sweep.traits import on_mesh
from pytest_trainsafe.sweep.validity import Rule, divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.judges.metamorphic import relations

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


def __getattr__(name: str) -> object:
    """Imports `relations` when it is first used, because most projects do not use it."""
    if name != "relations":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"{__name__}.relations")
