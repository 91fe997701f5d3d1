"""Tells whether two training runs differ by rounding or by a bug, and where the bug starts.

pytest imports this package at every start, so the import loads neither torch nor numpy.  A public
name is looked up in its module when it is first accessed.  If that module needs torch and torch is
not loaded yet, the name gets a stand-in, which loads torch when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trainsafe.align.logical import logical_tensor
    from pytest_trainsafe.annotations.entries import AnnotationError
    from pytest_trainsafe.assertions import (
        Loosen,
        TrainsafeFailure,
        assert_deterministic,
        assert_equivalent,
        assert_invariants,
        assert_kept_relations,
        assert_proved_equivalent,
        assert_refines,
        assert_resumable,
        assert_rng,
        assert_same_by,
        assert_schedule_independent,
        assert_trainsafe,
        expect_rng,
    )
    from pytest_trainsafe.core.finding import Finding, Mismatch, Pattern
    from pytest_trainsafe.core.mesh import Mesh
    from pytest_trainsafe.core.point import Point
    from pytest_trainsafe.core.tensor_id import TensorId
    from pytest_trainsafe.errors import (
        ArgumentError,
        DeclarationError,
        ReplayError,
        TraceError,
        TrainsafeError,
        TrainsafeWarning,
    )
    from pytest_trainsafe.fuzz.decorator import trainsafe_fuzz
    from pytest_trainsafe.fuzz.failure import FlakyProgram, FuzzFailure, FuzzInconclusive
    from pytest_trainsafe.fuzz.strategy import parallel_points
    from pytest_trainsafe.judges.learn.instrument.observation import observe
    from pytest_trainsafe.judges.metamorphic import relations
    from pytest_trainsafe.judges.replay.checkpoints.instrument.checkpoint import ReplayCheckpoint
    from pytest_trainsafe.judges.replay.checkpoints.instrument.plan import replay_plan
    from pytest_trainsafe.judges.replay.checkpoints.instrument.regenerate import fast_forward
    from pytest_trainsafe.judges.replay.determinism.instrument.runtime import deterministic_runtime
    from pytest_trainsafe.judges.replay.per_example.dataset import PerExampleDataset
    from pytest_trainsafe.judges.replay.per_example.dropout import (
        PerExampleDropout,
        logical_positions,
        per_example_dropout,
    )
    from pytest_trainsafe.judges.replay.per_example.keys import (
        per_example_generator,
        per_example_keys,
    )
    from pytest_trainsafe.judges.replay.resume.instrument.save import TrainingCheckpoint
    from pytest_trainsafe.launch import GroupFailure, Script
    from pytest_trainsafe.record.context import Context
    from pytest_trainsafe.record.current import context
    from pytest_trainsafe.record.model.consistent import consistent_tensor
    from pytest_trainsafe.runs.group import Group
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.sweep import divides, requires
    from pytest_trainsafe.sweep.case import Case
    from pytest_trainsafe.sweep.traits import on_mesh, sizes
    from pytest_trainsafe.trace.reader import Trace

__all__ = [
    "AnnotationError",
    "ArgumentError",
    "Case",
    "Context",
    "DeclarationError",
    "Finding",
    "FlakyProgram",
    "FuzzFailure",
    "FuzzInconclusive",
    "Group",
    "GroupFailure",
    "Loosen",
    "Mesh",
    "Mismatch",
    "Pattern",
    "PerExampleDataset",
    "PerExampleDropout",
    "Point",
    "ReplayCheckpoint",
    "ReplayError",
    "Script",
    "TensorId",
    "Trace",
    "TraceError",
    "Traces",
    "TrainingCheckpoint",
    "TrainsafeError",
    "TrainsafeFailure",
    "TrainsafeWarning",
    "assert_deterministic",
    "assert_equivalent",
    "assert_invariants",
    "assert_kept_relations",
    "assert_proved_equivalent",
    "assert_refines",
    "assert_resumable",
    "assert_rng",
    "assert_same_by",
    "assert_schedule_independent",
    "assert_trainsafe",
    "consistent_tensor",
    "context",
    "deterministic_runtime",
    "divides",
    "expect_rng",
    "fast_forward",
    "logical_positions",
    "logical_tensor",
    "observe",
    "on_mesh",
    "parallel_points",
    "per_example_dropout",
    "per_example_generator",
    "per_example_keys",
    "relations",
    "replay_plan",
    "requires",
    "sizes",
    "trainsafe_fuzz",
]

#: The module that defines each public name, relative to this package.
_HOME = {
    "AnnotationError": "annotations.entries",
    "ArgumentError": "errors",
    "Case": "sweep.case",
    "Context": "record.context",
    "DeclarationError": "errors",
    "Finding": "core.finding",
    "FlakyProgram": "fuzz.failure",
    "FuzzFailure": "fuzz.failure",
    "FuzzInconclusive": "fuzz.failure",
    "Group": "runs.group",
    "GroupFailure": "launch",
    "Loosen": "assertions",
    "Mesh": "core.mesh",
    "Mismatch": "core.finding",
    "Pattern": "core.finding",
    "PerExampleDataset": "judges.replay.per_example.dataset",
    "PerExampleDropout": "judges.replay.per_example.dropout",
    "Point": "core.point",
    "ReplayCheckpoint": "judges.replay.checkpoints.instrument.checkpoint",
    "ReplayError": "errors",
    "Script": "launch",
    "TensorId": "core.tensor_id",
    "Trace": "trace.reader",
    "TraceError": "errors",
    "Traces": "runs.traces",
    "TrainingCheckpoint": "judges.replay.resume.instrument.save",
    "TrainsafeError": "errors",
    "TrainsafeFailure": "assertions",
    "TrainsafeWarning": "errors",
    "assert_deterministic": "assertions",
    "assert_equivalent": "assertions",
    "assert_invariants": "assertions",
    "assert_kept_relations": "assertions",
    "assert_refines": "assertions",
    "assert_resumable": "assertions",
    "assert_proved_equivalent": "assertions",
    "assert_rng": "assertions",
    "assert_same_by": "assertions",
    "assert_schedule_independent": "assertions",
    "assert_trainsafe": "assertions",
    "consistent_tensor": "record.model.consistent",
    "context": "record.current",
    "deterministic_runtime": "judges.replay.determinism.instrument.runtime",
    "divides": "sweep",
    "expect_rng": "assertions",
    "fast_forward": "judges.replay.checkpoints.instrument.regenerate",
    "logical_positions": "judges.replay.per_example.dropout",
    "logical_tensor": "align.logical",
    "observe": "judges.learn.instrument.observation",
    "on_mesh": "sweep.traits",
    "parallel_points": "fuzz.strategy",
    "per_example_dropout": "judges.replay.per_example.dropout",
    "per_example_generator": "judges.replay.per_example.keys",
    "per_example_keys": "judges.replay.per_example.keys",
    "relations": "judges.metamorphic",
    "replay_plan": "judges.replay.checkpoints.instrument.plan",
    "requires": "sweep",
    "sizes": "sweep.traits",
    "trainsafe_fuzz": "fuzz.decorator",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sys
    from importlib import import_module

    from pytest_trainsafe import deferred

    if name.startswith("assert_") and deferred.first_assertion is not None:
        deferred.first_assertion()
    home = f"{__name__}.{_HOME[name]}"
    if name in deferred.IMPORTS_TORCH and "torch" not in sys.modules:
        value = deferred.deferred(home, name)
    else:
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
