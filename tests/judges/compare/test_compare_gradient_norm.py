"""The allowance of the gradient norm follows from the noise responses of the gradients."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.values import Values
from pytest_trainsafe.judges.compare.tolerance.gradient_norm import response_of_norm
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Record, parameter, write

NAMES = ("norm.weight", "fc1.weight", "fc1.bias")
NORM = TensorId(0, None, "grad_norm", "", "grad_norm")


def gradients(moved: tuple[float, ...] = (0.0, 0.0, 0.0)) -> dict[str, torch.Tensor]:
    """Gradients of equal norm, each multiplied by one plus its share."""
    flat = torch.full((400,), 0.05, dtype=torch.float64)
    return {name: flat * (1 + share) for name, share in zip(NAMES, moved, strict=True)}


def trace(path: Path, held: dict[str, torch.Tensor], norm: float, sketched: bool = False) -> Trace:
    records = [Record(parameter("main_grad", name, 0), value) for name, value in held.items()]
    records.append(Record(NORM, torch.tensor(norm, dtype=torch.float64)))
    return write(path, records, sketched=sketched)


@pytest.mark.parametrize("sketched", [False, True])
def test_responses_of_gradients_add_up_in_quadrature(tmp_path: Path, sketched: bool) -> None:
    reference = trace(tmp_path / "a", gradients(), 3**0.5, sketched)
    other = trace(tmp_path / "b", gradients((0.03, -0.04, 0.0)), 3**0.5, sketched)
    found = response_of_norm(Values(reference), Values(other), 0)
    assert found == pytest.approx(math.hypot(0.03, 0.04) / 3)
    assert response_of_norm(Values(reference), Values(other), 1) == 0.0


@pytest.mark.parametrize(("error", "passes"), [(0.9, True), (1.1, False)])
def test_a_small_noise_response_of_the_norm_does_not_limit_its_allowance(
    tmp_path: Path, error: float, passes: bool
) -> None:
    share = 1e-9
    allowed = 30 * math.hypot(share, share) / 3  # SAFETY of float64
    reference = trace(tmp_path / "a", gradients(), 3**0.5)
    # The effects of the two gradients on the norm cancel, so that its own response is zero.
    perturbed = trace(tmp_path / "b", gradients((share, -share, 0.0)), 3**0.5)
    candidate = trace(tmp_path / "c", gradients(), 3**0.5 * (1 + error * allowed))
    found = compare(RungTraces("float64", candidate, reference, perturbed, None))
    assert [finding.where for finding in found.findings] == ([] if passes else [NORM])
