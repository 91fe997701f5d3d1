"""What Python floats mean, and decisions of a run on real numbers."""

import math
from fractions import Fraction

import pytest
import torch

from pytest_trainsafe.arithmetic import Asked, Doubles, ExactMode, Residues, UndecidedError
from pytest_trainsafe.arithmetic.constants import Constant, meaning


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (1e-6, Fraction(1, 10**6)),
        (0.1 + 0.2, Fraction(3, 10)),
        (1 / 3, Fraction(1, 3)),
        (1 - 0.9**2, Fraction(19, 100)),
        (1 - 0.999**3, Fraction(2997001, 10**9)),
        (-448.0, Fraction(-448)),
        (0.0, Fraction(0)),
        (1e-12, Fraction(1, 10**12)),
    ],
)
def test_a_float_means_the_fraction_that_it_rounds(value, meant):
    assert meaning(value) == Constant(meant)


def test_a_float_means_a_root_by_its_square():
    assert meaning(1 / math.sqrt(8)) == Constant(Fraction(1, 8), 1)
    assert meaning(-(8**0.25)) == Constant(Fraction(8), 2, sign=-1)
    assert meaning(math.sqrt(2 / math.pi)) == Constant(Fraction(2), 1, -1)


@pytest.mark.parametrize(
    "value", [0.7316251983712311, torch.finfo(torch.float64).min, torch.finfo(torch.float64).max]
)
def test_a_float_without_simple_meaning_means_itself(value):
    assert meaning(value) == Constant(Fraction(value))


def test_constants_written_differently_are_equal():
    n = Residues()
    x = n.enter(torch.randn(3, dtype=torch.float64))
    assert n.divide(x, math.sqrt(8)).equal(n.multiply(x, 8**-0.5))
    quarter = n.multiply(x, 8**-0.25)
    assert n.multiply(quarter, 8**-0.25).equal(n.multiply(x, 8**-0.5))


def clamped(x):
    return torch.clamp(x, -1, 1)


def test_a_clamp_follows_the_run_on_real_numbers():
    values = torch.tensor([-3.0, 0.3, 7.0], dtype=torch.float64)
    doubles = Doubles()
    with ExactMode(doubles) as mode:
        clamped(mode.enter(values))
    mode = ExactMode(n := Residues(0, doubles.decisions.replay()))
    entered = mode.enter(values)
    with mode:
        result = clamped(entered)
    assert result.equal(torch.stack([n.lift(-1), entered[1], n.lift(1)]))


def test_without_decisions_a_comparison_is_refused():
    mode = ExactMode(Residues())
    x = mode.enter(torch.randn(2, dtype=torch.float64))
    with mode, pytest.raises(UndecidedError, match="gt"):
        bool((x > 0).any())


def test_another_course_than_that_of_the_real_run_is_refused():
    doubles = Doubles()
    x = torch.randn(2, dtype=torch.float64)
    with ExactMode(doubles) as mode:
        mode.enter(x) > 0  # noqa: B015
    mode = ExactMode(Residues(0, doubles.decisions.replay()))
    y = mode.enter(x)
    with mode, pytest.raises(UndecidedError, match=r"lt.*gt"):
        y < 0  # noqa: B015
    with mode:
        y > 0  # noqa: B015
    with mode, pytest.raises(UndecidedError, match="took 1"):
        y > 0  # noqa: B015


def test_decisions_can_come_from_a_function():
    source = Asked(lambda name, arguments: torch.tensor([True, False]))
    mode = ExactMode(Residues(0, source))
    x = mode.enter(torch.randn(2, dtype=torch.float64))
    with mode:
        result = torch.relu(x)
    assert result.tolist() == [x[0].item(), 0]


def test_a_number_that_leaves_the_tensors_is_that_of_the_real_run():
    doubles = Doubles()
    x = torch.tensor(0.3, dtype=torch.float64)
    with ExactMode(doubles) as mode:
        mode.enter(x).item()
    mode = ExactMode(Residues(0, doubles.decisions.replay()))
    y = mode.enter(x)
    with mode:
        assert y.item() == 0.3
