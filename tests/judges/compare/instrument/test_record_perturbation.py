"""Noise has the size of rounding errors; without it, recording does not change a training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.instrument.jumps import StableJumps
from pytest_trainsafe.judges.compare.instrument.perturb import Noise
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.current import context

X = torch.linspace(-1, 1, 96).reshape(2, 4, 12)


class Mixed(nn.Module):
    """In-place consumers, shared modules, dropout, recomputation, tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.LayerNorm(12)
        self.drop = nn.Dropout(0.25)
        self.lstm = nn.LSTM(12, 12, batch_first=True)
        self.attend = nn.MultiheadAttention(12, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x.add_(1)
        x = self.act(x)
        x = checkpoint(lambda y: self.first(self.norm(y)), x, use_reentrant=False)
        x[:, :2].mul_(2)
        x = self.drop(x)
        x, _ = self.lstm(x)
        y, weights = self.attend(x, x, x)
        # Squared: each row of weights sums to 1, so a plain sum would hide the noise.
        return self.first(y).relu_() + weights.square().sum()


def steps(model: nn.Module, ctx: Any) -> list[Tensor]:
    """Train; return every loss and every parameter."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer)
    losses = []
    for _ in range(2):
        with ctx.step():
            for index in range(2):
                with ctx.microbatch(index):
                    loss = model(X * (index + 1)).square().mean()
                    loss.backward()
                    losses.append(loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return [*losses, *(p.detach() for p in model.parameters())]


def test_recording_does_not_change_training(record: Any) -> None:
    model = Mixed()
    bare = copy.deepcopy(model)
    recorded: list[Tensor] = []
    record(lambda ctx: recorded.extend(steps(model, ctx)), seed=5)
    torch.manual_seed(5)
    expected = steps(bare, context())  # outside a run: records nothing, installs nothing
    assert len(recorded) == len(expected) > 10
    assert all(torch.equal(a, b) for a, b in zip(recorded, expected, strict=True))


def test_noise_slightly_changes_every_activation_and_gradient(record: Any) -> None:
    model = Mixed().eval()
    same, size = copy.deepcopy(model), 2.0**-13
    runs = [
        record(lambda ctx, m=m: steps(m, ctx), perturbation=eps)
        for m, eps in ((model, 0.0), (same, size))
    ]
    clean, noisy = runs
    assert set(clean.rank.tensors) == set(noisy.rank.tensors)
    assert clean.rank.inputs[0] == noisy.rank.inputs[0]
    for id in clean.rank.tensors:
        if id.step == 0 and id.kind in ("activation", "activation_grad", "param_grad"):
            one, other = (run.trace.load(0, run.rank.tensors[id]) for run in runs)
            assert not torch.equal(one, other), id
            assert float((one - other).norm() / one.norm()) < 100 * size, id


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_noise_has_the_size_of_one_rounding_error(record: Any, dtype: str) -> None:
    """The output and the gradient of a single leaf module deviate by 0.2 to 1.2 epsilon."""
    kind = getattr(torch, dtype)
    x = torch.linspace(-2, 3, 400).reshape(20, 20).to(kind)
    model = nn.Sequential(nn.Identity())
    weights = torch.linspace(1, 2, 400).reshape(20, 20).to(kind)
    got: dict[float, Tensor] = {}

    def train(ctx: Context) -> None:
        leaf = x.clone().requires_grad_()
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(leaf).backward(weights)
        assert leaf.grad is not None
        got[len(got)] = leaf.grad

    clean = record(train, dtype=dtype)
    noisy = record(train, dtype=dtype, perturbation=rung_named(dtype).epsilon)
    pairs = [
        (
            run.get("activation", "0.output").double(),
            run.get("activation_grad", "0.output").double(),
        )
        for run in (clean, noisy)
    ]
    assert torch.equal(got[0], weights)
    both = [(*pair, grad.double()) for pair, grad in zip(pairs, got.values(), strict=True)]
    for exact, perturbed in zip(*both, strict=True):
        size = float((perturbed - exact).norm() / exact.norm()) / rung_named(dtype).epsilon
        assert 0.2 <= size <= 1.2, size


def test_noise_keeps_the_gradient_of_an_input_that_a_module_returns(record: Any) -> None:
    """The shortcut of a residual block: its output is the tensor that the block computes with."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shortcut = nn.Linear(12, 12), nn.Identity()
            self.fc = nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            kept = self.shortcut(x)
            return self.fc(x) + kept

    size = 2.0**-20
    model = Block()
    models = {0.0: model, size: copy.deepcopy(model)}
    clean, noisy = (
        record(lambda ctx, m=m: steps(m, ctx), perturbation=eps) for eps, m in models.items()
    )
    for kind in ("activation", "activation_grad"):
        one, other = (run.get(kind, "shortcut.output") for run in (clean, noisy))
        assert 0 < float((one - other).norm() / one.norm()) < 100 * size, kind


def test_noise_is_a_function_of_the_seed_the_place_and_the_values() -> None:
    values = torch.linspace(1, 2, 50)
    noise = Noise(2.0**-10, seed=0)
    first = noise("a", values)
    assert torch.equal(first, Noise(2.0**-10, seed=0)("a", values.clone()))
    others = [noise("b", values), noise("a", values + 1) - 1, Noise(2.0**-10, seed=1)("a", values)]
    for other in others:
        assert float((first - other).abs().max()) > 2.0**-12
    before = torch.get_rng_state()
    noise("a", values)
    assert torch.equal(before, torch.get_rng_state())


def test_noise_does_not_change_zeros_infinities_nans_and_integers() -> None:
    noise = Noise(2.0**-3, seed=0)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])
    torch.testing.assert_close(noise("a", special), special, rtol=0, atol=0, equal_nan=True)
    largest = torch.full((64,), torch.finfo(torch.float32).max)
    assert bool(noise("a", largest).isfinite().all())
    for whole in (torch.arange(5), torch.tensor([True]), torch.tensor([1j])):
        assert noise("a", whole) is whole


def test_masked_outputs_stay_masked_under_noise(record: Any) -> None:
    class Mask(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.masked_fill(x > 0, float("-inf"))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.mask = nn.Linear(12, 12), Mask()

        def forward(self, x: Tensor) -> Tensor:
            return F.softmax(self.mask(self.fc(x)), -1)

    def train(ctx: Context) -> None:
        model = Model()
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(X).square().sum().backward()

    run = record(train, perturbation=2.0**-10)
    masked = run.get("activation", "mask.output")
    assert bool(masked.isneginf().any())
    assert not bool(masked.isnan().any())
    for path in ("fc.weight", "fc.bias"):
        assert bool(run.get("param_grad", path).isfinite().all())


def test_noise_does_not_replace_an_input_that_is_returned_beside_another_output() -> None:
    noise = Noise(2.0**-10, seed=0)
    given, made = torch.linspace(1, 2, 8), torch.linspace(2, 3, 8)
    again, noisy = noise.output("a", (given, made), [given])
    assert again is given
    assert not torch.equal(noisy, made)
    assert not torch.equal(noise.output("identity", given, [given]), given)


def test_under_noise_an_output_that_another_is_computed_from_has_a_recorded_gradient(
    record: Any,
) -> None:
    """A module returns its logits and their softmax, as a router does."""

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 36).reshape(3, 12))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits = F.linear(x, self.weight)
            return logits, logits.softmax(-1)

    def train(ctx: Context) -> None:
        model = nn.Sequential(Router())
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            _, weights = model(X[0])
            weights.square().sum().backward()

    plain, noisy = record(train), record(train, perturbation=rung_named("float32").epsilon)
    assert plain.paths("activation_grad") == noisy.paths("activation_grad")
    for kind in ("activation", "activation_grad"):
        for place in ("0.output.0", "0.output.1"):
            expected, found = plain.get(kind, place), noisy.get(kind, place)
            assert not torch.equal(found, expected)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_packed_sequences_keep_their_type_and_batch_sizes_under_noise(record: Any) -> None:
    from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

    kept: list[Any] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(12, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, torch.tensor([4, 2]), batch_first=True)
            out, (hidden, _) = self.lstm(packed)
            kept.append(out)
            return out.data.sum() + hidden.sum()

    def train(ctx: Context) -> None:
        model = Model()
        ctx.initialize(model)
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(X).backward()

    run = record(train, perturbation=2.0**-10)
    assert type(kept[0]) is PackedSequence
    assert kept[0].batch_sizes.tolist() == [2, 2, 1, 1]
    assert {"lstm.output.0.data", "lstm.output.0.batch_sizes", "lstm.output.1.0"} <= set(
        run.paths("activation")
    )


class Seen(TorchDispatchMode):
    """Lists the operators that a mode of the program sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_sees_that_noise_is_added_but_not_how_it_is_made() -> None:
    noise, leaf = Noise(2.0**-24, seed=1), X.clone().requires_grad_()
    output = leaf * 2
    with Seen() as seen:
        noisy = noise.output("linear", output)
        during_forward = list(seen.names)
        noisy.sum().backward()

    assert not torch.equal(noisy, output)
    assert during_forward == ["aten.add.Tensor"]
    assert not [name for name in seen.names if "rand" in name or "where" in name]


def test_noise_is_the_same_whether_or_not_jumps_are_kept_from_flipping() -> None:
    noise, values = Noise(2.0**-53, seed=1), X.double()
    plain = noise.output("linear", values * 2)
    with StableJumps():
        kept = noise.output("linear", values * 2)

    assert not torch.equal(plain, values * 2)
    assert torch.equal(plain, kept)
