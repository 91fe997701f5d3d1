"""Casts from float64 to a narrower dtype, and to FP8, are found with their dtype and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.hooks.casts import CastWatch
from pytest_trainsafe.trace.facts import Cast

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)


def line_of(function: Callable[..., Any], text: str) -> str:
    """file:line of the line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    [number] = [first + i for i, line in enumerate(lines) if text in line]
    return f"{__file__}:{number}"


def floats(x: Tensor) -> Tensor:
    return x.exp().float()


def narrow(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def half(x: Tensor) -> Tensor:
    return x.type(torch.float16)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1, dtype=torch.float32)


def sums(x: Tensor) -> Tensor:
    return x.sum(dtype=torch.float32)


def copies(x: Tensor) -> Tensor:
    return torch.empty(4, 3, dtype=torch.float32).copy_(x, non_blocking=True)


def adds(x: Tensor) -> Tensor:
    return torch.zeros(4, 3, dtype=torch.float32).add_(x)


def inside_torch(x: Tensor) -> Tensor:
    return nn.Linear(3, 2, dtype=torch.float32)(x.to(torch.float32)).sum()


def one_number(x: Tensor) -> Tensor:
    return x.sum().float()


@pytest.mark.parametrize(
    ("function", "text", "dtype"),
    [
        (floats, ".float()", torch.float32),
        (narrow, "bfloat16", torch.bfloat16),
        (half, "float16)", torch.float16),
        (softmax, "F.softmax", torch.float32),
        (sums, "x.sum", torch.float32),
        (copies, "copy_", torch.float32),
        (adds, "add_", torch.float32),
        (inside_torch, "x.to", torch.float32),
        (one_number, ".float()", torch.float32),
    ],
)
def test_a_cast_is_found_with_its_dtype_and_line(
    function: Callable[[Tensor], Tensor], text: str, dtype: torch.dtype
) -> None:
    with CastWatch() as watch:
        function(X)
    assert watch.narrowest is dtype
    assert watch.where == line_of(function, text)


def test_the_narrowest_of_several_casts_is_reported() -> None:
    with CastWatch() as watch:
        floats(X), narrow(X), half(X)
    assert watch.narrowest is torch.bfloat16
    assert watch.where == line_of(narrow, "bfloat16")


def test_a_cast_in_a_backward_is_found() -> None:
    class Narrow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad.float().double() * 2

    x = X.clone().requires_grad_()
    y = Narrow.apply(x).sum()
    with CastWatch() as watch:
        y.backward()
    assert watch.narrowest is torch.float32
    assert watch.where == line_of(Narrow.backward, "grad.float()")


@pytest.mark.parametrize(
    "harmless",
    [
        lambda: X.sum().item(),
        lambda: X.long(),
        lambda: X > 0,
        lambda: torch.arange(5).float(),
        lambda: torch.ones(3, dtype=torch.float32).bfloat16(),
        lambda: torch.ones(3, dtype=torch.float32) * X.sum(),
        lambda: torch.zeros_like(X, dtype=torch.float32),
        lambda: X.new_empty(3, dtype=torch.float32),
        lambda: torch.empty(0, dtype=torch.float64).float(),
        lambda: torch.tensor([1.0, 2.0], dtype=torch.float32),
        lambda: torch.ones(3, dtype=torch.float32).double(),
        lambda: X.argmax(-1),
    ],
)
def test_operations_that_do_not_narrow_float64_tensors_are_ignored(
    harmless: Callable[[], Any],
) -> None:
    with CastWatch() as watch:
        harmless()
    assert watch.narrowest is None


def test_a_cast_of_what_was_cast_before_counts_as_well() -> None:
    with CastWatch() as watch:
        narrow(floats(X))
    assert watch.narrowest is torch.bfloat16
    assert watch.where == line_of(narrow, "bfloat16")


def test_in_float32_a_cast_to_bfloat16_is_found_and_one_out_of_float64_is_not() -> None:
    with CastWatch(torch.float32) as watch:
        floats(X)
    assert watch.narrowest is None
    with CastWatch(torch.float32) as watch:
        narrow(X.float())
    assert watch.narrowest is torch.bfloat16


class Model(nn.Module):
    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.fc, self.norm, self.drop = nn.Linear(4, 7), nn.LayerNorm(7), nn.Dropout(0.1)
        self.cast = cast

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.norm(F.gelu(self.fc(self.embed(tokens)))))
        return x.float() if self.cast else x


def train_model(ctx: Context, cast: bool, autocast: bool) -> None:
    model = Model(cast).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    ctx.watch(model, optimizer)
    tokens = torch.arange(7)
    for _ in range(2):
        with ctx.step():
            with ctx.microbatch(0):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(tokens), tokens)
                ctx.loss(loss)
                loss.backward()
            ctx.grad_norm(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def casts(run: Any) -> list[str]:
    """The casts that were recorded."""
    return [str(cast) for cast in run.rank.events_of(Cast)]


@pytest.mark.parametrize("autocast", [False, True])
def test_no_cast_is_recorded_for_a_float64_program_without_casts(
    record: Any, autocast: bool
) -> None:
    """Autocast does not change float64 tensors; that it is enabled is recorded separately."""
    run = record(lambda ctx: train_model(ctx, False, autocast), dtype="float64", watch_casts=True)
    assert casts(run) == []
    assert run.rank.note("autocast") == ["bfloat16"] * autocast
    # These are float32 and int64 at every precision, and so is torch's count of steps.
    kinds = ("grad_norm", "input")
    tensors = {id: event for id, event in run.rank.tensors.items() if id.kind not in kinds}
    assert {e.dtype for id, e in tensors.items() if not id.name.endswith(".step")} == {"float64"}


def test_a_cast_in_a_forward_is_recorded_if_casts_are_watched(record: Any) -> None:
    run = record(lambda ctx: train_model(ctx, True, False), dtype="float64", watch_casts=True)
    assert casts(run) == [f"float32 {line_of(Model.forward, 'x.float()')}"]
    unwatched = record(lambda ctx: train_model(ctx, True, False), dtype="float64")
    assert casts(unwatched) == []


def test_watching_casts_does_not_change_recorded_values(record: Any) -> None:
    one, other = (
        record(lambda ctx: train_model(ctx, False, False), dtype="float64", watch_casts=watched)
        for watched in (False, True)
    )
    assert one.hashes() == other.hashes()


def cast_early(ctx: Context, dtype: torch.dtype) -> None:
    """Casts a weight to float32 before `ctx.initialize` fills it, in a model of the given dtype."""
    model = Model(False).to(dtype)
    with torch.no_grad():
        model.fc.weight.copy_(torch.randn(7, 4, dtype=torch.float64).float())
    ctx.initialize(model)
    ctx.watch(model)
    with ctx.step(), ctx.microbatch(0):
        model(torch.arange(7)).sum().backward()


def test_a_cast_during_initialisation_is_not_recorded(record: Any) -> None:
    run = record(lambda ctx: cast_early(ctx, ctx.dtype), dtype="float64", watch_casts=True)
    assert casts(run) == []


def test_a_model_cast_to_bfloat16_before_ctx_watch_is_recorded_as_a_cast(
    record: Any,
) -> None:
    run = record(lambda ctx: cast_early(ctx, torch.bfloat16), dtype="float64", watch_casts=True)
    [note] = casts(run)
    assert note.startswith("bfloat16 ")


def to_codes(x: Tensor) -> Tensor:
    return (x * 8).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_casts_to_fp8_are_recorded_as_float8_at_every_precision(record: Any, dtype: str) -> None:
    class Quantised(Model):
        def forward(self, tokens: Tensor) -> Tensor:
            x = super().forward(tokens)
            return x + (to_codes(x.detach()).to(x.dtype) / 8 - x.detach())

    def train(ctx: Context) -> None:
        model = Quantised(False).to(ctx.dtype)
        ctx.initialize(model)
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(torch.arange(7)).sum().backward()

    run = record(train, dtype=dtype, watch_casts=True)
    assert casts(run) == [f"float8 {line_of(to_codes, 'float8_e4m3fn')}"]


def test_copying_and_dequantising_fp8_values_is_not_a_cast_to_fp8() -> None:
    codes = to_codes(X)
    with CastWatch() as watch:
        torch.cat([codes.view(torch.uint8)] * 2).view(torch.float8_e4m3fn).clone()
        codes.to(torch.float32)
        torch.empty(3, dtype=torch.float8_e4m3fn)
    assert watch.quantised == ""
