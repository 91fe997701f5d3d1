"""Declare: which parallel configurations a test covers.  Makes Points; imports no torch.

A program's module takes `requires` and `divides` from here.
"""

from pytest_trainsafe.core.point import MESH_AXES, AxisValue, Point
from pytest_trainsafe.sweep.validity import Rule, divides, requires

__all__ = ["MESH_AXES", "AxisValue", "Point", "Rule", "divides", "requires"]
