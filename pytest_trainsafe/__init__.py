"""Is this difference rounding or a bug, and where does it start?

The public names are resolved when they are first used: importing this package, as pytest does
at every start, imports neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trainsafe.assertions import (
        Loosen,
        TrainsafeFailure,
        assert_equivalent,
        assert_rng,
        assert_trainsafe,
        expect_rng,
    )
    from pytest_trainsafe.core.finding import Finding
    from pytest_trainsafe.core.point import Point
    from pytest_trainsafe.launch import GroupFailure, Script
    from pytest_trainsafe.record.context import Context
    from pytest_trainsafe.record.current import context
    from pytest_trainsafe.record.model.consistent import consistent_tensor

__all__ = [
    "Context",
    "Finding",
    "GroupFailure",
    "Loosen",
    "Point",
    "Script",
    "TrainsafeFailure",
    "assert_equivalent",
    "assert_rng",
    "assert_trainsafe",
    "consistent_tensor",
    "context",
    "expect_rng",
]

_HOME = {
    "Context": "pytest_trainsafe.record.context",
    "Finding": "pytest_trainsafe.core.finding",
    "GroupFailure": "pytest_trainsafe.launch",
    "Loosen": "pytest_trainsafe.assertions",
    "Point": "pytest_trainsafe.core.point",
    "Script": "pytest_trainsafe.launch",
    "TrainsafeFailure": "pytest_trainsafe.assertions",
    "assert_equivalent": "pytest_trainsafe.assertions",
    "assert_rng": "pytest_trainsafe.assertions",
    "assert_trainsafe": "pytest_trainsafe.assertions",
    "consistent_tensor": "pytest_trainsafe.record.model.consistent",
    "context": "pytest_trainsafe.record.current",
    "expect_rng": "pytest_trainsafe.assertions",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
