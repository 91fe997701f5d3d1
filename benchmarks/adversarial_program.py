"""A small correct program over dp and tp; each variant makes its numerics awkward in one way.

Trained by `bench_adversarial.py` and by the suite. It has column- and row-parallel layers, a
normalisation and a head; gradients are summed over dp. It is correct in every variant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.collectives import split
from pytest_trainsafe.reference_models.parallel.marks import is_split
from pytest_trainsafe.reference_models.parallel.tensor.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
)
from pytest_trainsafe.sweep.validity import divides, requires

MICROBATCHES, BATCH = 4, 2
ANNOTATIONS = {"modules": {"fc1": {"output": {"tp_dim": -1}}}}

#: The arguments of `train` that a variant changes; the others keep their defaults.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zero head": {"zero_head": True},
    "masked rows": {"unmasked": 3},
    "one-token loss": {"unmasked": 1},
    "all-masked loss": {"unmasked": 0},
    "frozen parameters": {"frozen": "fc1"},
    "unused parameters": {"unused": True},
    "seeded dropout": {"dropout": 0.2},
    "dropout over tp": {"tp_dropout": 0.2},
    "width 1": {"hidden": 1, "width": 2},
    "length 1": {"length": 1},
    "clip boundary": {"clip": True},
    "loss scale 65536": {"loss_scale": 65536.0},
    "loss scale 1e-8": {"loss_scale": 1e-8},
    "sign-SGD": {"optimizer": "sign-sgd"},
    "Rprop": {"optimizer": "rprop"},
    "top-k routing": {"experts": 4},
    "infinity masks": {"attention": True},
    "lr 0": {"learning_rate": 0.0},
    "lr 10": {"learning_rate": 10.0},
    "lr 1e4": {"learning_rate": 1e4},
    "weights x 50": {"scale": 50.0},
    "dynamic range 1e+-4": {"decades": 4.0},
    "log|h|": {"log": True},
    "lr 10, no norm": {"learning_rate": 10.0, "normed": False},
    "lr 1e4, no norm": {"learning_rate": 1e4, "normed": False},
    "weights x 50, no norm": {"scale": 50.0, "normed": False},
    "dynamic range 1e+-4, no norm": {"decades": 4.0, "normed": False},
    "log|h|, no norm": {"log": True, "normed": False},
    "0-dim gain": {"gain": 0},
    "1-element gain": {"gain": 1},
    "2-element gain": {"gain": 2},
    "all parameters zero": {"scale": 0.0},
    "inputs x 1e12": {"inputs": 1e12},
    "inputs x 1e-12": {"inputs": 1e-12},
    "targets x 1e12": {"targets": 1e12},
}

#: The variants in which no parameter changes, so that a pass would prove nothing.
EMPTY = ("all-masked loss", "lr 0", "all parameters zero")


class Model(nn.Module):
    """Maps [batch, length, hidden] to the same shape; see `train` for the arguments."""

    def __init__(self, axes: Axes, hidden: int, width: int, **how: Any) -> None:
        super().__init__()
        self.axes, self.how = axes, how
        cut = axes.tp.size > 1
        self.fc1: nn.Module = (
            ColumnParallelLinear(hidden, width, axes) if cut else nn.Linear(hidden, width)
        )
        self.fc2: nn.Module = (
            RowParallelLinear(width, hidden, axes) if cut else nn.Linear(width, hidden)
        )
        if how["normed"]:
            self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, hidden)
        if how["gain"] is not None:
            self.gain = nn.Parameter(torch.ones(()) if not how["gain"] else torch.ones(how["gain"]))
        if how["unused"]:
            self.unused = nn.Linear(hidden, hidden)
        if how["experts"]:
            self.router = nn.Linear(hidden, how["experts"])

    def forward(self, inputs: Tensor, seed: int) -> Tensor:
        hidden = inputs
        if self.how["attention"]:
            scores = hidden @ hidden.mT / math.sqrt(hidden.shape[-1])
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            hidden = hidden + scores.masked_fill(future, -math.inf).softmax(dim=-1) @ hidden
        inside = nn.functional.gelu(self.fc1(hidden))
        if self.how["tp_dropout"]:
            width = inside.shape[-1] * self.axes.tp.size
            kept = _kept((*inside.shape[:-1], width), self.how["tp_dropout"], seed)
            inside = inside * split(kept.to(inside.dtype), -1, self.axes.tp)
        hidden = hidden + self.fc2(inside)
        if self.how["dropout"]:
            hidden = hidden * _kept(hidden.shape, self.how["dropout"], seed + 1).to(hidden.dtype)
        if self.how["experts"]:
            weights = self.router(hidden).softmax(dim=-1)
            best, which = weights.topk(1, dim=-1)
            hidden = hidden * best * (1 + which.to(hidden.dtype))
        if self.how["log"]:
            hidden = hidden.abs().log()
        if self.how["gain"] is not None:
            # The normalisation that follows undoes a factor, so its gradient is mostly rounding.
            hidden = hidden * self.gain.mean()
        if self.how["normed"]:
            hidden = self.norm(hidden)
        out: Tensor = self.head(hidden)
        return out


@requires(divides("width", "tp"))
def train(
    ctx: Any,
    hidden: int = 8,
    width: int = 16,
    length: int = 4,
    steps: int = 2,
    learning_rate: float = 1e-3,
    optimizer: str = "adamw",
    scale: float = 1.0,
    inputs: float = 1.0,
    targets: float = 1.0,
    decades: float = 0.0,
    loss_scale: float = 1.0,
    unmasked: int | None = None,
    clip: bool = False,
    zero_head: bool = False,
    frozen: str = "",
    unused: bool = False,
    dropout: float = 0.0,
    tp_dropout: float = 0.0,
    experts: int = 0,
    attention: bool = False,
    log: bool = False,
    gain: int | None = None,
    normed: bool = True,
) -> None:
    """Train for `steps` steps of four micro-batches, two sequences of `length` each.

    `scale` multiplies all initial weights, and `inputs` and `targets` multiply the data. The
    features of the inputs are scaled from 10**-`decades` to 10**`decades`. `unmasked` is the
    number of tokens of a micro-batch that count in the loss (None: all). `clip` clips to a limit
    close to the gradients' norm. `gain` is the number of elements of a factor, 0 for a 0-dim
    tensor, None for no factor. `normed` is whether there is a normalisation before the head.
    """
    axes = Axes.of(ctx)
    how = {
        "unused": unused,
        "dropout": dropout,
        "tp_dropout": tp_dropout,
        "experts": experts,
        "attention": attention,
        "log": log,
        "gain": gain,
        "normed": normed,
    }
    model = Model(axes, hidden, width, **how).to(ctx.device, ctx.dtype)

    def std(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        if zero_head and name.startswith("head."):
            return 0.0, 0.0
        if len(shape) >= 2:
            return 0.0, scale / math.sqrt(math.prod(shape[1:]))
        return (scale, 0.1 * scale) if name in ("norm.weight", "gain") else (0.0, 0.02 * scale)

    ctx.initialize(model, std=std)
    if frozen:
        model.get_submodule(frozen).requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stepper = _optimizer(optimizer, trained, learning_rate, ctx.dtype)
    ctx.watch(model, stepper, annotations=ANNOTATIONS)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                seed = 1_000_003 * ctx.seed + 1000 * step + 10 * index
                given, wanted = _data(seed, (BATCH, length, hidden), decades)
                counted = _counted((BATCH, length, 1), unmasked).to(ctx.dtype)
                with ctx.microbatch(index):
                    out = model((given * inputs).to(ctx.dtype), seed)
                    errors = (out - (wanted * targets).to(ctx.dtype)).square() * counted
                    loss = errors.sum() / (counted.sum() * hidden).clamp(min=1) / MICROBATCHES
                    ctx.loss(loss.detach())
                    (loss * loss_scale).backward()
            gradients = [each.grad for each in trained if each.grad is not None]
            for gradient in gradients:
                if axes.dp.size > 1:
                    dist.all_reduce(gradient, group=axes.dp.group)
                gradient.div_(loss_scale)
            if clip:
                norm = _norm(trained, axes)
                limit = float(f"{float(norm):.2g}")
                for gradient in gradients:
                    gradient.mul_((limit / norm).clamp(max=1.0).to(gradient.dtype))
            stepper.step()
            stepper.zero_grad()


def _optimizer(
    name: str, parameters: list[nn.Parameter], learning_rate: float, dtype: torch.dtype
) -> torch.optim.Optimizer:
    if name == "adamw":
        # The usual 1e-8 is zero in float16, and zero over zero is not a number.
        epsilon = 1e-4 if dtype == torch.float16 else 1e-8
        return torch.optim.AdamW(parameters, lr=learning_rate, eps=epsilon)
    if name == "rprop":
        return torch.optim.Rprop(parameters, lr=learning_rate)
    assert name == "sign-sgd", name
    return SignSGD(parameters, {"lr": learning_rate})


class SignSGD(torch.optim.Optimizer):
    """Moves every element by the learning rate, against the sign of its gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad.sign())


def _data(seed: int, shape: tuple[int, ...], decades: float) -> Iterator[Tensor]:
    """Yields inputs and targets, in float64 whatever the program's dtype."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(-decades, decades, shape[-1], dtype=torch.float64)
    yield torch.randn(shape, generator=generator, dtype=torch.float64) * spread
    yield torch.randn(shape, generator=generator, dtype=torch.float64)


def _counted(shape: tuple[int, ...], unmasked: int | None) -> Tensor:
    """1 for the tokens that count, 0 for the others."""
    whole = torch.ones(shape)
    if unmasked is not None:
        whole.view(-1)[unmasked:] = 0
    return whole


def _kept(shape: tuple[int, ...], rate: float, seed: int) -> Tensor:
    """A dropout mask of the whole tensor, the same on every rank and in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (drawn >= rate) / (1 - rate)


def _norm(parameters: list[nn.Parameter], axes: Axes) -> Tensor:
    """The norm of all gradients, in float32 at least."""
    total = {True: torch.zeros(()), False: torch.zeros(())}
    for parameter in parameters:
        if parameter.grad is not None:
            wide = parameter.grad.to(torch.promote_types(parameter.dtype, torch.float32))
            total[is_split(parameter)] = total[is_split(parameter)] + wide.square().sum()
    if axes.tp.size > 1:
        dist.all_reduce(total[True], group=axes.tp.group)
    return (total[True] + total[False]).sqrt()
