"""Data-parallel programs that multiply rounding: a measured tolerance is then wide, and a fault may hide in it.

Cancellation (the variance as a difference of two large means), a nearly singular linear system (the Hilbert matrix),
close eigenvalues, a saturated softmax, a normalisation of a row that is almost constant, a chaotic recurrence (the
logistic map), and gradients near the smallest numbers.  In data parallelism each micro-batch is computed as on one
device, so the candidate itself has almost no rounding.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from pytest_trainsafe import Context

BATCH, WIDTH, TOTAL = 4, 8, 4


class Part(nn.Module):
    """The ill-conditioned function, with a module before its critical step so that noise reaches it."""

    def __init__(self, kind: str, strength: float) -> None:
        super().__init__()
        self.kind, self.strength = kind, strength
        self.before = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        wide = y.float() if y.dtype == torch.bfloat16 else y
        return self.function(wide).to(x.dtype)

    def function(self, y: Tensor) -> Tensor:
        match self.kind:
            case "cancel":  # the difference of two large numbers
                return (y + self.strength) - self.strength
            case "variance":
                large = y + self.strength
                return (
                    large.square().mean(-1, keepdim=True) - large.mean(-1, keepdim=True).square()
                ) + y
            case "solve":
                index = torch.arange(WIDTH, dtype=y.dtype)
                hilbert = 1 / (index[:, None] + index[None, :] + 1)
                return torch.tanh(torch.linalg.solve(hilbert, y.T).T * self.strength)
            case "eigen":
                outer = y.unsqueeze(-1) * y.unsqueeze(-2)
                ladder = torch.diag(1 + self.strength * torch.arange(WIDTH, dtype=y.dtype))
                vectors = torch.linalg.eigh(ladder + 1e-3 * self.strength * outer).eigenvectors
                return vectors.square()[..., 0]
            case "softmax":
                return torch.softmax(y * self.strength, -1)
            case "norm":  # a row that is almost constant
                return layer_norm(1 + y * self.strength, (WIDTH,), eps=0.0)
            case "chaos":
                z = torch.sigmoid(y)
                for _ in range(int(self.strength)):
                    z = 3.99 * z * (1 - z)
                return z.detach() + y - y.detach()  # the gradient of the identity
            case "tiny":
                return y
        raise ValueError(self.kind)


class Model(nn.Module):
    """Two branches, of which only one is ill-conditioned; their sum goes through one head."""

    def __init__(self, kind: str, strength: float) -> None:
        super().__init__()
        self.part = Part(kind, strength)
        self.plain = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.part(x) + torch.tanh(self.plain(x)))


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    values = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    return values[0], values[1]


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.5


def train(
    ctx: Context, fault: str = "", kind: str = "cancel", strength: float = 1e6, scale: float = 1.0
) -> None:
    """Two steps of four micro-batches; `scale` multiplies the loss, and makes gradients tiny."""
    fault = fault if ctx.world_size > 1 else ""
    model = Model(kind, strength).to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / scale)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(TOTAL):
                with ctx.microbatch(index):
                    inputs, targets = (each.to(ctx.dtype) for each in batch(step, index))
                    loss = (model(inputs) - targets).square().mean() / TOTAL * scale
                    if fault == "loss_101":
                        loss = loss * 1.01  # fault: loss_101
                    ctx.loss(loss)
                    loss.backward()
            for name, parameter in model.named_parameters():
                if fault == "unreduced_before" and name == "part.before.bias":
                    continue  # fault: unreduced_before
                if fault == "unreduced_plain" and name == "plain.bias":
                    continue  # fault: unreduced_plain
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
                if fault == "head_101" and name == "head.weight":
                    parameter.grad.mul_(1.01)  # fault: head_101
                if fault == "before_110" and name == "part.before.weight":
                    parameter.grad.mul_(1.1)  # fault: before_110
                if fault == "averaged":
                    parameter.grad.div_(ctx.point.size("dp"))  # fault: averaged
            optimizer.step()
            optimizer.zero_grad()
