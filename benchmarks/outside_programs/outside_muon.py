"""A residual MLP trained by a Muon-like optimizer, which divides its work among the dp ranks.

The idea is that of the public Muon: the momentum of each matrix is orthogonalised by a few
Newton-Schulz iterations.  Each matrix belongs to one rank, in turn; it keeps the momentum, computes
the new matrix, and broadcasts it.  Matrices of one shape are orthogonalised in one batch.  All other
parameters are trained by AdamW on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import Context, divides, requires

VOCABULARY, LENGTH, BATCH, WIDTH = 24, 6, 2, 16


def orthogonalize(matrices: Tensor, iterations: int, fault: str) -> Tensor:
    """Push the singular values of a batch of matrices [n, rows, columns] towards 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    norm = x.norm(dim=(-2, -1), keepdim=True)
    if fault == "norm-of-batch":
        norm = x.norm()  # fault: norm-of-batch
    x = x / (norm + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum; matrix i belongs to rank i modulo the size of the group."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: dist.ProcessGroup,
        lr: float = 0.02,
        momentum: float = 0.9,
        weight_decay: float = 0.1,
        iterations: int = 5,
        fault: str = "",
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "iterations": iterations,
        }
        super().__init__(parameters, defaults)
        self.group, self.fault = group, fault

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        for group in self.param_groups:
            matrices = group["params"]
            count = len(matrices)
            if self.fault == "last-round-dropped":
                count = len(matrices) // size * size  # fault: last-round-dropped
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for index in range(rank, count, size):
                by_shape.setdefault(matrices[index].shape, []).append(matrices[index])
            for owned in by_shape.values():
                self.update(owned, group)
            for index, matrix in enumerate(matrices):
                dist.broadcast(matrix.data, group_src=index % size, group=self.group)
                if self.fault == "decays-twice":
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])  # fault: decays-twice

    def update(self, owned: list[nn.Parameter], group: dict) -> None:
        """Update matrices of one shape, which belong to this rank."""
        directions = []
        for matrix in owned:
            state = self.state[matrix]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(matrix)
            buffer = state["momentum_buffer"]
            buffer.lerp_(matrix.grad, 1 - group["momentum"])
            directions.append(matrix.grad.lerp(buffer, group["momentum"]))
        updates = orthogonalize(torch.stack(directions), group["iterations"], self.fault)
        rows, columns = owned[0].shape
        factor = max(1.0, rows / columns) ** 0.5
        for matrix, update in zip(owned, updates, strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.add_(update, alpha=-group["lr"] * factor)


class Layer(nn.Module):
    """A residual MLP with its norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Tokens to logits of the next token, from the mean of the tokens so far."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.projection = nn.Linear(width, width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.tanh(self.projection(x)))


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    """The tokens and targets of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).to(ctx.device)
    return text[:, :-1], text[:, 1:]


@requires(divides("microbatches", "dp"))
def train(ctx: Context, fault: str = "", microbatches: int = 4, steps: int = 2) -> None:
    """Train the matrices between embedding and head by Muon, all else by AdamW."""
    model = Model(WIDTH, layers=3).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    inner = (*model.layers.parameters(), *model.projection.parameters())
    matrices = [parameter for parameter in inner if parameter.ndim == 2]
    chosen = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    for index, matrix in enumerate(matrices):
        # What this rank's optimizer holds of the matrix: all of it, or nothing.
        owned = index % ctx.point.size("dp") == ctx.coordinates["dp"]
        matrix.main_param_range = (0, matrix.numel() if owned else 0)
    muon = Muon(matrices, ctx.group("dp"), fault=fault if ctx.world_size > 1 else "")
    adamw = torch.optim.AdamW(others, lr=3e-3)
    ctx.watch(model, [muon, adamw])
    for step in range(steps):
        with ctx.step():
            for number in ctx.microbatches(microbatches):
                with ctx.microbatch(number):
                    inputs, targets = batch(ctx, step, number)
                    logits = model(inputs)
                    wide = torch.promote_types(logits.dtype, torch.float32)
                    loss = F.cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten())
                    loss = loss / microbatches
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            for optimizer in (muon, adamw):
                optimizer.step()
                optimizer.zero_grad()
