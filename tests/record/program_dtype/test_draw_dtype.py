"""Random numbers are the program's at every rung: those that its own default dtype yields."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_trainsafe.judges.replay.rng.instrument.no_ledger import NoLedger
from pytest_trainsafe.record.program_dtype import random_operators as operators
from pytest_trainsafe.record.program_dtype.default import ProgramDefault
from pytest_trainsafe.record.program_dtype.draws import Draws

SHAPE = (5, 7)  # more than 16 elements: torch draws fewer with code that no dtype changes

Draw = Callable[[torch.dtype, "torch.Generator | None"], torch.Tensor]


def _empty(dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(SHAPE, dtype=dtype)


def _filled(value: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.full(SHAPE, float(value), dtype=dtype)


#: Every way to draw.  `t` is the dtype of the rung, as `ctx.dtype` gives it; many do not use it.
DRAWS: dict[str, Draw] = {
    "randn": lambda t, g: torch.randn(SHAPE, generator=g),
    "randn in the rung's dtype": lambda t, g: torch.randn(SHAPE, generator=g, dtype=t),
    "randn in float32": lambda t, g: torch.randn(SHAPE, generator=g, dtype=torch.float32),
    "randn out": lambda t, g: torch.randn(SHAPE, generator=g, out=_empty()),
    "rand": lambda t, g: torch.rand(SHAPE, generator=g),
    "rand in the rung's dtype": lambda t, g: torch.rand(SHAPE, generator=g, dtype=t),
    "rand out": lambda t, g: torch.rand(SHAPE, generator=g, out=_empty()),
    "randn_like": lambda t, g: torch.randn_like(_filled(1, t)),
    "rand_like": lambda t, g: torch.rand_like(_filled(1, t)),
    "randint_like": lambda t, g: torch.randint_like(_filled(1, t), 9),
    "normal of numbers": lambda t, g: torch.normal(1.0, 2.0, SHAPE, generator=g),
    "normal of means": lambda t, g: torch.normal(_filled(1), 2.0, generator=g),
    "normal of deviations": lambda t, g: torch.normal(1.0, _filled(2), generator=g),
    "normal of both": lambda t, g: torch.normal(_filled(1), _filled(2), generator=g),
    "normal out": lambda t, g: torch.normal(_filled(1), _filled(2), generator=g, out=_empty()),
    "normal_": lambda t, g: _empty().normal_(1, 2, generator=g),
    "normal_ in the rung's dtype": lambda t, g: _empty(t).normal_(1, 2, generator=g),
    "uniform_": lambda t, g: _empty().uniform_(-1, 1, generator=g),
    "exponential_": lambda t, g: _empty().exponential_(2, generator=g),
    "cauchy_": lambda t, g: _empty().cauchy_(generator=g),
    "log_normal_": lambda t, g: _empty().log_normal_(generator=g),
    "geometric_": lambda t, g: _empty().geometric_(0.3, generator=g),
    "random_": lambda t, g: _empty().random_(generator=g),
    "random_ below": lambda t, g: _empty().random_(9, generator=g),
    "random_ between": lambda t, g: _empty().random_(3, 9, generator=g),
    "bernoulli_": lambda t, g: _empty().bernoulli_(0.3, generator=g),
    "bernoulli_ of a tensor": lambda t, g: _empty().bernoulli_(_filled(0.3), generator=g),
    "bernoulli": lambda t, g: torch.bernoulli(_filled(0.3), generator=g),
    "bernoulli of a number": lambda t, g: torch.bernoulli(_filled(0.3), 0.3, generator=g),
    "bernoulli out": lambda t, g: torch.bernoulli(_filled(0.3), generator=g, out=_empty()),
    "multinomial": lambda t, g: torch.multinomial(_filled(0.3), 3, generator=g),
    "poisson": lambda t, g: torch.poisson(_filled(3), generator=g),
    "binomial": lambda t, g: torch.binomial(_filled(9), _filled(0.3), generator=g),
    "gamma": lambda t, g: torch._standard_gamma(_filled(2.0), generator=g),
    "dirichlet": lambda t, g: torch._sample_dirichlet(_filled(2.0), generator=g),
    "randint": lambda t, g: torch.randint(9, SHAPE, generator=g),
    "randint in the rung's dtype": lambda t, g: torch.randint(9, SHAPE, generator=g, dtype=t),
    "randperm": lambda t, g: torch.randperm(31, generator=g),
    "dropout": lambda t, g: nn.functional.dropout(_filled(1), 0.3) > 0,
    "alpha dropout": lambda t, g: nn.functional.alpha_dropout(_filled(1), 0.3, training=True),
    "rrelu": lambda t, g: nn.functional.rrelu(_filled(-1), training=True) > -0.2,
    "gumbel": lambda t, g: nn.functional.gumbel_softmax(_filled(1)).argmax(-1),
    "a linear layer": lambda t, g: nn.Linear(*SHAPE).weight.detach(),
    "a linear layer in the rung's dtype": lambda t, g: nn.Linear(*SHAPE, dtype=t).weight.detach(),
    "truncated": lambda t, g: nn.init.trunc_normal_(_empty(), generator=g),
    "xavier": lambda t, g: nn.init.xavier_uniform_(_empty(t), generator=g),
    "an embedding": lambda t, g: nn.Embedding(*SHAPE).weight.detach(),
    "a distribution": lambda t, g: torch.distributions.Normal(0.0, 1.0).sample(SHAPE),
    "numpy": lambda t, g: torch.from_numpy(np.random.default_rng(3).standard_normal(SHAPE)),
    "numpy's state": lambda t, g: torch.tensor(np.random.RandomState(3).rand(*SHAPE)),
}

#: Numbers that flow through float64 operations after they are drawn, and are rounded there.
ROUNDED_LATER = {"truncated", "gamma", "dirichlet", "xavier", "alpha dropout", "normal of means"}
ROUNDED_LATER |= {"normal of deviations", "normal of both", "normal out"}


class _Watching(TorchDispatchMode):
    """A mode of the dispatcher, as those that watch casts and add noise."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _rung(dtype: torch.dtype) -> Iterator[None]:
    default = ProgramDefault(dtype)
    with default.installed(), NoLedger(_Sink()).recording(Draws(default).through):
        yield


class _Sink:
    def add(self, event: object) -> None: ...


def _drawn(
    dtype: torch.dtype, draw: Draw, *, own: bool, mode: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a draw yields at a rung, and the state of its generator afterwards."""
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5) if own else None
    with _rung(dtype), _Watching() if mode else contextlib.nullcontext():
        made = draw(dtype, generator)
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return made, state


@pytest.mark.skipif(bool(operators.why_not()), reason=operators.why_not())
@pytest.mark.parametrize("mode", [False, True], ids=["", "under-a-mode"])
@pytest.mark.parametrize("own", [False, True], ids=["default-generator", "own-generator"])
@pytest.mark.parametrize("name", DRAWS)
def test_float64_and_the_recipes_dtypes_draw_the_same_numbers(
    name: str, own: bool, mode: bool
) -> None:
    draw = DRAWS[name]
    plain, after = _drawn(torch.float32, draw, own=own, mode=mode)
    wide, wide_after = _drawn(torch.float64, draw, own=own, mode=mode)
    low, low_after = _drawn(torch.bfloat16, draw, own=own, mode=mode)
    assert torch.equal(after, wide_after)
    assert torch.equal(after, low_after)
    if name in ROUNDED_LATER:
        torch.testing.assert_close(wide, plain.to(wide.dtype), rtol=2e-5, atol=2e-6)
    else:
        assert torch.equal(wide, plain.to(wide.dtype))
        assert torch.equal(low, plain.to(low.dtype))


@pytest.mark.parametrize("name", ["randn", "rand", "normal_", "bernoulli", "a linear layer"])
def test_the_recipes_run_draws_what_torch_draws_without_the_plugin(name: str) -> None:
    torch.manual_seed(3)
    alone = DRAWS[name](torch.float32, None)
    assert torch.equal(_drawn(torch.float32, DRAWS[name], own=False)[0], alone)


def test_without_the_cast_float64_would_draw_other_numbers() -> None:
    torch.manual_seed(3)
    plain = torch.randn(SHAPE)
    torch.manual_seed(3)
    assert not torch.allclose(torch.randn(SHAPE, dtype=torch.float64), plain.double(), atol=1e-2)


def test_what_is_created_without_a_dtype_is_float64_at_that_rung() -> None:
    with _rung(torch.float64):
        assert torch.randn(3).dtype is torch.rand(3).dtype is torch.zeros(3).dtype is torch.float64
        assert nn.Linear(2, 2).weight.dtype is torch.float64
        assert torch.randn(3, dtype=torch.float32).dtype is torch.float32


def test_a_default_dtype_that_the_program_sets_decides_what_it_draws() -> None:
    def draw(dtype: torch.dtype, generator: torch.Generator | None) -> torch.Tensor:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        first = torch.randn(SHAPE)
        torch.set_default_dtype(before)
        return torch.cat([first.to(dtype), torch.randn(SHAPE).to(dtype)])

    plain, _ = _drawn(torch.float32, draw, own=False)
    wide, _ = _drawn(torch.float64, draw, own=False)
    assert torch.equal(wide, plain.double())
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_a_compilation_does_not_change_what_the_program_draws(own: torch.dtype) -> None:
    def draw(dtype: torch.dtype, generator: torch.Generator | None) -> torch.Tensor:
        if own is not torch.float32:
            torch.set_default_dtype(own)
        before = torch.zeros(2)
        torch.compiler.reset()  # else it compiles once for all tests
        compiled = torch.compile(lambda x: x + 1, backend="eager")
        assert compiled(before).dtype is before.dtype
        drawn = torch.randn(SHAPE).to(dtype)
        torch.set_default_dtype(torch.float32)
        return drawn

    plain, _ = _drawn(torch.float32, draw, own=False)
    wide, _ = _drawn(torch.float64, draw, own=False)
    assert torch.equal(wide, plain.double())


def test_a_program_with_float64_as_its_default_draws_in_float64_at_every_rung() -> None:
    def draw(dtype: torch.dtype, generator: torch.Generator | None) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        return torch.randn(SHAPE)

    plain, _ = _drawn(torch.float32, draw, own=False)
    wide, _ = _drawn(torch.float64, draw, own=False)
    assert plain.dtype is torch.float64
    assert torch.equal(wide, plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_optimizers_keep_the_scalars_that_they_fix_to_float32(dtype: torch.dtype) -> None:
    with _rung(dtype):
        weight = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer = torch.optim.NAdam([weight])
        weight.sum().backward()
        optimizer.step()
        assert optimizer.state[weight]["mu_product"].dtype is torch.float32
        assert optimizer.state[weight]["exp_avg"].dtype is dtype
