"""Runs a program for a benchmark, and provides the judge's inputs: rungs and logical tensors."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.ladder.runs import make_rung, more_samples
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.errors import Wide
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.trace.reader import Trace

DTYPES = ("float64", "float32", "bfloat16")


@contextmanager
def session(settings: Settings) -> Iterator[Session]:
    """A Session whose traces are deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="trainsafe-bench-") as temporary:
        opened = Session(settings, Path(temporary))
        try:
            yield opened
        finally:
            opened.close()


def case(
    program: str,
    point: Point,
    settings: Settings,
    arguments: Mapping[str, object],
    candidate: Mapping[str, object] | None = None,
) -> Case:
    """The Case of a reference model at a Point.

    `arguments` are for both programs, and `candidate` are further arguments of the candidate.
    """
    module = importlib.import_module(f"pytest_trainsafe.reference_models.{program}")
    both = dict(arguments)
    return Case(point, resolve(module.train), settings, both, {**both, **(candidate or {})})


def rungs(
    opened: Session, one: Case, dtypes: Sequence[str] = DTYPES, samples: int = 1
) -> Iterator[tuple[str, RungTraces]]:
    """Run a Case in each dtype, as the ladder does, and yield its rungs.

    `samples` is the number of samples of noise that measure rounding. The candidate's traces are
    deleted after the last rung. Raises GroupFailure if ranks did not finish.
    """
    reference, candidate = opened.reference(one), opened.candidate(one)
    for dtype in dtypes:
        reference.prefetch(dtype)
        candidate.prefetch(dtype)
    for dtype in dtypes:
        rung = make_rung(dtype, candidate, reference, shadowed=dtype != "float64")
        yield dtype, more_samples(rung, dtype, reference, samples)
    opened.discard(candidate)


def values(trace: Trace, id: TensorId, shape: Sequence[int] | None = None) -> Wide | None:
    """A logical tensor as a wide array; None if its parts do not fit together."""
    tensor = logical_tensor(trace, id, shape).tensor
    if tensor is None:
        return None
    found: Wide = tensor.numpy()
    return found


def whole(trace: Trace, id: TensorId, shape: Sequence[int] | None = None) -> Wide:
    """A logical tensor as a wide array; SystemExit if its parts do not fit together."""
    found = values(trace, id, shape)
    if found is None:
        raise SystemExit(f"{id} cannot be assembled from its parts on the ranks at {trace.point}")
    return found


def relative(error: Wide, of: Wide) -> float:
    """‖error‖ / ‖of‖, in Frobenius norms."""
    return float(np.linalg.norm(error) / np.linalg.norm(of))
