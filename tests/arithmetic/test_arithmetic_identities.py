"""What exact numbers know of exp, log, roots and infinities, and what they must not confuse."""

import math

import pytest
import torch
from torch.nn import functional

from pytest_trainsafe.arithmetic import Doubles, ExactMode, Residues


def exact(program, *values, seed=0):
    """What a program of tensors returns on residues, with its own decisions."""
    doubles = Doubles()
    run(program, doubles, values)
    return run(program, Residues(seed, doubles.decisions.replay()), values)


def run(program, numbers, values):
    mode = ExactMode(numbers)
    entered = [mode.enter(each) for each in values]
    with mode:
        return program(*entered)


def reals(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def shifted_softmax(x):
    weights = torch.exp(x - x.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def online_softmax(x):
    """Blocks of two columns, with a running maximum, as ring attention does."""
    largest = x[:, :2].amax(-1, keepdim=True)
    total = torch.exp(x[:, :2] - largest).sum(-1, keepdim=True)
    for start in range(2, x.shape[1], 2):
        block = x[:, start : start + 2]
        now = torch.maximum(largest, block.amax(-1, keepdim=True))
        total = total * torch.exp(largest - now)
        total = total + torch.exp(block - now).sum(-1, keepdim=True)
        largest = now
    return torch.exp(x - largest) / total


def by_logsumexp(x):
    return torch.exp(x - torch.logsumexp(x, -1, keepdim=True))


@pytest.mark.parametrize("program", [shifted_softmax, online_softmax, by_logsumexp])
def test_forms_of_softmax_are_equal(program):
    x = reals(2, 6)
    assert exact(program, x).equal(exact(lambda each: each.softmax(-1), x))


def test_a_softmax_that_forgets_to_rescale_is_not_equal():
    def wrong(x):
        largest = x[:, :3].amax(-1, keepdim=True)
        now = x.amax(-1, keepdim=True)
        total = torch.exp(x[:, :3] - largest).sum(-1, keepdim=True)
        return torch.exp(x - now) / (total + torch.exp(x[:, 3:] - now).sum(-1, keepdim=True))

    x = reals(2, 6).sort(-1).values
    assert not exact(wrong, x).equal(exact(lambda each: each.softmax(-1), x))


def by_parts(x):
    """The log-sum-exp of those of the parts, as ranks that hold parts of a vocabulary may do."""
    parts = torch.stack([each.exp().sum(-1).log() for each in x.chunk(3, -1)])
    return parts.exp().sum(0).log()


def of_parts(x):
    parts = torch.stack([torch.logsumexp(each, -1) for each in x.chunk(3, -1)])
    return torch.logsumexp(parts, 0)


def shifted_by(shift, added=None):
    def program(x):
        now = shift(x)
        back = now if added is None else added(x)
        return torch.exp(x - now).sum(-1).log() + back.reshape(-1)

    return program


def row_maximum(x):
    return x.amax(-1, keepdim=True)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.exp().sum(-1).log(),
        by_parts,
        of_parts,
        shifted_by(row_maximum),
        shifted_by(torch.max),
        shifted_by(lambda x: x[:, :2].amax(-1, keepdim=True)),
        lambda x: x[:, 0] - functional.log_softmax(x, -1)[:, 0],
    ],
)
def test_a_log_sum_exp_may_be_shifted_by_any_maximum(program):
    x = reals(2, 6)
    assert exact(program, x).equal(exact(lambda each: torch.logsumexp(each, -1), x))


@pytest.mark.parametrize(
    "program",
    [
        shifted_by(torch.max, added=row_maximum),
        shifted_by(row_maximum, added=lambda x: x[:, :1]),
        lambda x: torch.logsumexp(x[:, 1:], -1),
        lambda x: torch.logsumexp(x, -1) + x.amax(),
    ],
)
def test_a_log_sum_exp_with_another_shift_added_is_not_equal(program):
    x = reals(2, 6)
    assert not exact(program, x).equal(exact(lambda each: torch.logsumexp(each, -1), x))


def test_cross_entropy_over_parts_of_the_vocabulary_is_cross_entropy():
    target = torch.tensor([1, 4])

    def parallel(x):
        parts = x.chunk(2, dim=-1)
        largest = torch.maximum(*(part.amax(-1) for part in parts))
        parts = [part - largest[:, None] for part in parts]
        total = torch.stack([torch.exp(part).sum(-1) for part in parts]).sum(0)
        chosen = torch.cat(parts, -1).gather(1, target[:, None])[:, 0]
        return (torch.log(total) - chosen).mean()

    x = reals(2, 6)
    assert exact(parallel, x).equal(exact(lambda each: functional.cross_entropy(each, target), x))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functional.silu, lambda x: x * torch.sigmoid(x)),
        (torch.sigmoid, lambda x: 1 / (1 + torch.exp(-x))),
        (torch.sigmoid, lambda x: torch.exp(x) / (1 + torch.exp(x))),
        (torch.tanh, lambda x: 2 * torch.sigmoid(2 * x) - 1),
        (torch.sin, lambda x: -torch.sin(-x)),
        (torch.cos, lambda x: torch.cos(-x)),
        (lambda x: torch.exp(torch.log(x * x)), lambda x: x * x),
        (lambda x: torch.sqrt(x * x + 1) ** 2, lambda x: x * x + 1),
        (lambda x: torch.sqrt((x * x + 1) / 3), lambda x: torch.sqrt(x * x + 1) / math.sqrt(3)),
        (lambda x: torch.rsqrt(x * x + 1).pow(2), lambda x: 1 / (x * x + 1)),
        (lambda x: (torch.sqrt(x * x + 1) / math.sqrt(2)) ** 2, lambda x: (x * x + 1) / 2),
        (lambda x: (3 * (2 / torch.sqrt(x * x + 1))) ** 2, lambda x: 36 / (x * x + 1)),
        (functional.gelu, lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        (torch.relu, lambda x: x.clamp(min=0)),
        (torch.abs, lambda x: torch.maximum(x, -x)),
        (lambda x: x.norm(), lambda x: torch.stack([x[0].norm(), x[1].norm()]).norm()),
    ],
)
def test_identities_of_training_code_hold(one, other):
    x = reals(2, 3)
    assert exact(one, x).equal(exact(other, x))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functional.silu, torch.sigmoid),
        (functional.gelu, lambda x: functional.gelu(x, approximate="tanh")),
        (torch.exp, lambda x: 1 + x),
        (torch.sqrt, lambda x: x),
        (torch.sin, torch.cos),
        (torch.relu, lambda x: x),
        (lambda x: x / math.sqrt(8), lambda x: x / 8),
        (lambda x: (torch.sqrt(x * x + 1) / math.sqrt(2)) ** 2, lambda x: (x * x + 1) / 4),
        (lambda x: (torch.sqrt(x * x + 1) / 2) ** 2, lambda x: (x * x + 1) / 2),
        (lambda x: x * 1e-6, lambda x: x * 1e-7),
        (lambda x: x, lambda x: x.to(torch.float8_e4m3fn).to(torch.float64)),
        (
            lambda x: (x * 2).to(torch.float8_e4m3fn).to(torch.float64) / 2,
            lambda x: (x * 4).to(torch.float8_e4m3fn).to(torch.float64) / 4,
        ),
    ],
)
def test_different_functions_are_not_equal(one, other):
    x = reals(2, 3)
    assert not exact(one, x).equal(exact(other, x))


def test_a_cast_to_the_dtype_of_a_recipe_is_the_identity():
    x = reals(2, 3)
    assert exact(lambda each: each.to(torch.bfloat16).float(), x).equal(exact(torch.clone, x))


def test_masked_scores_have_no_weight():
    mask = torch.tensor([0.0, 0.0, -math.inf], dtype=torch.float64)
    x = reals(2, 3)
    masked = exact(lambda each, added: (each + added).softmax(-1), x, mask)
    assert bool((masked[:, 2] == 0).all())
    assert masked[:, :2].equal(exact(lambda each: each[:, :2].softmax(-1), x))


def test_what_is_no_number_is_replaced_by_the_numbers_that_are_given():
    odd = torch.tensor([1.5, math.nan, math.inf, -math.inf], dtype=torch.float64)
    even = torch.tensor([1.5, 0.25, 2.0, -3.0], dtype=torch.float64)
    replaced = exact(lambda x: torch.nan_to_num(x, 0.25, 2.0, -3.0), odd)
    assert replaced.equal(exact(lambda x: x.clone(), even))
    assert exact(torch.nan_to_num, odd)[1] == 0


def test_what_an_infinity_touches_is_no_residue():
    x = reals(2)
    assert exact(lambda each: torch.reciprocal(each - each), x).isinf().all()
    assert exact(lambda each: each / 0, x).isnan().all()


def test_another_seed_gives_other_numbers_and_the_same_equalities():
    x = reals(2, 6)
    first, second = exact(shifted_softmax, x), exact(shifted_softmax, x, seed=1)
    assert not first.equal(second)
    assert second.equal(exact(lambda each: each.softmax(-1), x, seed=1))


@pytest.mark.parametrize("by", [3, -0.25, math.sqrt(8), 1 - 0.9**2, True])
def test_a_division_by_a_python_number_is_that_by_the_number_it_means(by):
    numbers = Residues(3)
    x = numbers.enter(reals(4))
    once = numbers.divide(x, by)
    assert torch.equal(numbers.divide(x, by), once)
    assert torch.equal(numbers.divide(x, numbers.lift(by)), once)
    assert torch.equal(numbers.multiply(once, by), x)


def test_the_square_of_a_division_by_a_root_divides_by_what_the_root_was_taken_of():
    numbers = Residues(3)
    inverse = numbers.divide(1, math.sqrt(8))
    assert torch.equal(numbers.square(inverse), numbers.divide(1, 8))


def test_a_division_by_the_number_zero_is_no_residue():
    assert Residues(3).divide(Residues(3).enter(reals(2)), 0).isfinite().tolist() == [False, False]
