"""Declare: which parallel configurations a test covers.  Makes Points; imports no torch."""

from pytest_trainsafe.sweep.point import MESH_AXES, AxisValue, Point

__all__ = ["MESH_AXES", "AxisValue", "Point"]
