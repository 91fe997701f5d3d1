"""The benchmarks of verdicts plant bugs that are triggered, and measure errors correctly."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_trainsafe.judges.compare.tensors.errors import norm
from pytest_trainsafe.judges.compare.tensors.tensor import allowance_by, judge_allowed
from pytest_trainsafe.reference_models.bugs import BUGS


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_planted_at_a_small_point_that_triggers_it(bug) -> None:
    from _points import triggering

    point = triggering(bug)

    assert bug.triggers(point)
    assert point.world_size <= 4


def test_missing_misshapen_and_nan_tensors_are_not_close() -> None:
    from bench_verdicts import close

    reference = np.zeros(3)

    assert close(reference.copy(), reference, 0.0, 1e-5)
    assert close(np.full(3, 9e-3), reference, 1e-2, 1e-1)
    for candidate in (None, np.zeros((3, 1)), np.array([0, np.nan, 0])):
        assert not close(candidate, reference, 1e-2, 1e-1)


def test_the_smallest_error_caught_separates_failing_from_passing_verdicts() -> None:
    from bench_sensitivity import PRECISION, smallest_caught

    random = np.random.default_rng(0)
    reference = random.standard_normal((2, 8, 16))
    noise = 1e-7 * random.standard_normal(reference.shape)
    allowed = allowance_by(reference, [reference + noise], "float32", loosened=1.0, least=0.0)
    region = (0, 4)

    found = smallest_caught(reference, reference, allowed, "float32", region)

    for error, right in ((found, False), (found / PRECISION**2, True)):
        faulty = reference.copy()
        faulty[region] *= 1 + error
        assert judge_allowed(faulty, reference, allowed, norm(reference), "float32").passed == right


def test_the_smallest_error_caught_is_infinite_if_no_error_is_caught() -> None:
    from bench_sensitivity import smallest_caught

    reference = np.zeros((2, 4, 4))
    reference[1] = 1.0
    allowed = allowance_by(reference, [reference], "float32", loosened=1.0, least=0.0)

    assert smallest_caught(reference, reference, allowed, "float32", (0, 2)) == float("inf")
