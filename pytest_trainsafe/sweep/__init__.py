"""Declares which parallel configurations (Points) a test covers.  Does not import torch.

Program modules import `requires`, `divides`, `on_mesh` and `Mesh` from here.  A name is looked up
when it is first accessed, because every start of pytest imports a module of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

#: The module that defines each name.
_HOME = {
    "MESH_AXES": "pytest_trainsafe.core.point",
    "AxisValue": "pytest_trainsafe.core.point",
    "Mesh": "pytest_trainsafe.core.mesh",
    "Point": "pytest_trainsafe.core.point",
    "Rule": "pytest_trainsafe.sweep.validity",
    "divides": "pytest_trainsafe.sweep.validity",
    "on_mesh": "pytest_trainsafe.sweep.traits",
    "requires": "pytest_trainsafe.sweep.validity",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
