"""Fixtures that record programs in this process, as a world of one rank, and open the traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec, arguments_of
from pytest_trainsafe.trace.writer import manifest_of, write_manifest


class Recorded:
    """The trace of one rank, with access to its values."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.rank = trace.ranks[0]

    def get(
        self, kind: Kind, path: str, *, step: int = 0, microbatch: int | None = None, call: int = 0
    ) -> torch.Tensor:
        """The value of one tensor, which must have been recorded exactly once."""
        if kind in ("activation", "activation_grad", "param_grad", "loss"):
            microbatch = microbatch or 0
        wanted = (step, microbatch, kind, path, call)
        [found] = [id for id in self.rank.tensors if wanted == _key(id)]
        return self.trace.load(0, self.rank.tensors[found])

    def paths(self, kind: Kind, step: int | None = None) -> list[str]:
        """The recorded paths of a kind, in the order of dataflow, with the call number if not 0."""
        return [
            id.path + (f"#{id.call}" if id.call else "")
            for id in self.rank.tensors
            if id.kind == kind and step in (None, id.step)
        ]

    def hashes(self) -> dict[TensorId, str]:
        """Every tensor's hash, in the order of dataflow."""
        return {id: event.hash for id, event in self.rank.tensors.items()}


def _key(id: TensorId) -> tuple[int, int | None, str, str, int]:
    return id.step, id.microbatch, id.kind, id.path, id.call


Record = Callable[..., Recorded]


@pytest.fixture
def assign(tmp_path: Path) -> Callable[..., Assignment]:
    """Build the assignment of a Run with a new trace directory; keywords change its spec."""
    made = []

    def make(*, replayed: str = "", **changes: Any) -> Assignment:
        made.append(dict(changes))
        defaults: dict[str, Any] = {
            "program": "a_program:train",
            "dtype": "float32",
            "adapters": BUILT_IN,
        }
        point = changes.pop("point", {})
        point = point if isinstance(point, Point) else Point.of(point)
        changes.update(axes=point.values, mesh=point.mesh.declared)
        changes["arguments"] = arguments_of(changes.get("arguments", {}))
        changes["rewrite"] = tuple(sorted(changes.get("rewrite", {}).items()))
        spec = RunSpec(**{**defaults, **changes})
        trace = tmp_path / f"trace{len(made)}"
        write_manifest(trace, manifest_of(spec, "cpu"))
        return Assignment(spec=spec, trace=str(trace), replayed=replayed)

    return make


@pytest.fixture
def record(assign: Callable[..., Assignment]) -> Record:
    """Record `train(ctx)` and open its trace; keywords change the spec.

    At a Point of several ranks this is rank 0, and the others are missing.
    """

    def run(train: Callable[[Context], object], **changes: Any) -> Recorded:
        assignment = assign(**changes)
        program.record(assignment, train)
        several = assignment.spec.point.world_size > 1
        return Recorded(Trace.open(assignment.trace, allow_incomplete=several))

    return run


@pytest.fixture(autouse=True)
def _no_process_group() -> Iterator[None]:
    """Destroys the process group that a test initialised."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    """Seeds torch, so that models made outside of a run have the same values in every test."""
    torch.manual_seed(0)
