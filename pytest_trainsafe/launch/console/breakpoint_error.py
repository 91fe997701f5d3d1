"""The error of a `breakpoint()` that cannot debug, or that the user left."""

from __future__ import annotations

from pytest_trainsafe.errors import TrainsafeError


class BreakpointError(TrainsafeError):
    """A debugger in a rank has no terminal, or the user left it with `q`."""
