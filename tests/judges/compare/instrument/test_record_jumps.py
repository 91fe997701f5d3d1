"""In Runs with noise in float64, functions with jumps do not flip at exact values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_trainsafe.judges.compare.instrument.jumps import StableJumps

#: Values on which functions jump: halves, integers, zeros, powers of two; and pairs of equal ones.
EXACT = torch.tensor([0.5, 1.5, -2.5, 3.0, -4.0, 0.25, 0.25, 8.0], dtype=torch.float64)
NOISE = 1 + torch.tensor([1, -1, 1, -1, -1, 1, -1, 1], dtype=torch.float64) * 2.0**-52

JUMPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "round": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round in place": lambda x: x.clone().round_(),
    "greater": lambda x: x > 0.25,
    "less or equal": lambda x: x.le(0.25),
    "equal": lambda x: x.unsqueeze(0) == x.unsqueeze(1),
    "to integers": lambda x: (x * 2).to(torch.int64),
    "floor of a logarithm": lambda x: x.abs().log2().floor(),
    "argmax": lambda x: x[5:7].argmax(),
    "topk": lambda x: x.topk(6).indices.sort().values,
    "bucketize": lambda x: torch.bucketize(x, EXACT.sort().values),
}


@pytest.mark.parametrize("name", JUMPS)
def test_noise_does_not_flip_exact_values(name: str) -> None:
    with StableJumps():
        noisy = JUMPS[name](EXACT * NOISE)

    assert torch.equal(noisy, JUMPS[name](EXACT))


@pytest.mark.parametrize("name", ["round", "floor", "greater", "equal", "to integers"])
def test_without_the_mode_noise_flips_exact_values(name: str) -> None:
    assert not torch.equal(JUMPS[name](EXACT * NOISE), JUMPS[name](EXACT))


def test_the_values_that_a_choice_returns_keep_their_noise_and_their_gradient() -> None:
    given = (EXACT * NOISE).requires_grad_()
    with StableJumps():
        chosen = given.topk(3).values
    chosen.sum().backward()

    assert torch.equal(chosen, given.detach().topk(3).values)
    assert given.grad is not None
    assert int(given.grad.sum()) == 3


def test_values_away_from_jumps_and_other_dtypes_are_unchanged() -> None:
    values = torch.linspace(0.1, 7.3, 50, dtype=torch.float64)
    single = torch.tensor([0.5, 1.5]) * (1 + 2.0**-23)
    with StableJumps():
        assert torch.equal(values.round(), torch.floor(values + 0.5))
        assert torch.equal(torch.exp(values), values.exp())
        rounded = single.round()

    assert rounded.tolist() == [1.0, 2.0]
