"""A data-parallel mixture of experts, whose choice of experts is declared as a decision.

Below float64 a candidate follows the reference's choices, so a wrong choice must be found by the choices themselves.
Top-2 routing (Shazeer et al., 2017) with the balancing loss of the Switch Transformer (Fedus et al., 2021).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pytest_trainsafe import Context

BATCH, WIDTH, TOTAL = 8, 16, 4
ANNOTATIONS = {"modules": {"selection": {"output": {"decision": True}}}}


class Selection(nn.Module):
    """The indices of the chosen experts."""

    def __init__(self, fault: str, rank: int) -> None:
        super().__init__()
        self.fault, self.rank = fault, rank

    def forward(self, scores: Tensor) -> Tensor:
        if self.fault == "random_tie_break":
            scores = scores + 0.2 * torch.rand_like(scores)  # fault: random_tie_break
        if self.fault == "biased" and self.rank == 1:
            scores = scores + 0.2 * one_hot(torch.tensor(0), scores.shape[-1])  # fault: biased
        if self.fault == "least":
            return scores.topk(2, dim=-1, largest=False).indices  # fault: least
        return scores.topk(2, dim=-1).indices


class Experts(nn.Module):
    def __init__(self, count: int, fault: str, rank: int) -> None:
        super().__init__()
        self.fault = fault
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.selection = Selection(fault, rank)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = self.router(x).softmax(-1)
        chosen = self.selection(probabilities)
        weights = probabilities.gather(-1, chosen)
        if self.fault == "detached_router":
            weights = weights.detach()  # fault: detached_router
        weights = weights / weights.sum(-1, keepdim=True)
        gates = torch.zeros_like(probabilities).scatter(-1, chosen, weights)
        if self.fault == "dropped_second":
            gates = gates.scatter(-1, chosen[..., 1:], 0.0)  # fault: dropped_second
        out = torch.stack([torch.tanh(expert(x)) for expert in self.experts], -1)
        used = one_hot(chosen, probabilities.shape[-1]).sum(-2).to(x.dtype).mean(0)
        balance = (used * probabilities.mean(0)).sum() * 0.01
        return x + (out * gates.unsqueeze(-2)).sum(-1), balance


class Model(nn.Module):
    def __init__(self, count: int, fault: str, rank: int) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.layer = Experts(count, fault, rank)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, balance = self.layer(torch.tanh(self.stem(x)))
        return self.head(x), balance


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    values = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    return values[0], values[1]


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def train(ctx: Context, fault: str = "", experts: int = 4) -> None:
    """Two steps of four micro-batches."""
    fault = fault if ctx.world_size > 1 else ""
    model = Model(experts, fault, ctx.coordinates["dp"]).to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(TOTAL):
                with ctx.microbatch(index):
                    inputs, targets = (each.to(ctx.dtype) for each in batch(step, index))
                    output, balance = model(inputs)
                    loss = ((output - targets).square().mean() + balance) / TOTAL
                    ctx.loss(loss)
                    if fault == "no_balance":
                        loss = loss - balance / TOTAL  # fault: no_balance
                    loss.backward()
            for name, parameter in model.named_parameters():
                if fault == "last_expert" and "experts.3" in name:
                    continue  # fault: last_expert
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
