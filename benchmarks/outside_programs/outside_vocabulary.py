"""A model whose embedding and tied head are cut over the vocabulary.

The idea is that of Megatron-LM's vocabulary parallelism: a rank looks up the tokens of its own rows
and the ranks' results are summed; the head gives each rank the logits of its own rows, and the cross
entropy is computed without gathering them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import Context, divides, requires

VOCABULARY, LENGTH, BATCH, WIDTH = 16, 8, 2, 16

ANNOTATIONS = {
    "parameters": {"embedding.weight": {"tp_dim": 0}},
    "modules": {"": {"output": {"tp_dim": -1}}, "head": {"output": {"tp_dim": -1}}},
}


class _Copy(torch.autograd.Function):
    """Hands its input on; sums the ranks' gradients of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    """Sums the ranks' terms; hands the gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class VocabularyEmbedding(nn.Module):
    """Looks up tokens in a table of which each rank has a block of rows."""

    def __init__(self, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.group, self.fault = group, fault
        self.rows = VOCABULARY // dist.get_world_size(group)
        self.start = dist.get_rank(group) * self.rows
        self.weight = nn.Parameter(torch.empty(self.rows, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        end = self.start + self.rows
        if self.fault == "last-row-masked":
            end = self.start + self.rows - 1  # fault: last-row-masked
        elsewhere = (tokens < self.start) | (tokens >= end)
        own = (tokens - self.start).masked_fill(elsewhere, 0)
        found = F.embedding(own, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)
        if self.fault == "lookup-detached":
            total = found.detach().clone()  # fault: lookup-detached
            dist.all_reduce(total, group=self.group)
            return total
        return _Sum.apply(found, self.group)


class _CrossEntropy(torch.autograd.Function):
    """The cross entropy of each token, from logits that are cut over the vocabulary."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        start: int,
        group: dist.ProcessGroup,
        sum_group: dist.ProcessGroup,
    ) -> Tensor:
        greatest = logits.amax(dim=-1)
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - greatest.unsqueeze(-1)
        total = shifted.exp().sum(dim=-1)
        dist.all_reduce(total, group=sum_group)
        elsewhere = (targets < start) | (targets >= start + logits.shape[-1])
        own = (targets - start).masked_fill(elsewhere, 0)
        chosen = shifted.gather(-1, own.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
        dist.all_reduce(chosen, group=group)
        ctx.save_for_backward(shifted.exp() / total.unsqueeze(-1), own, elsewhere)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, own, elsewhere = ctx.saved_tensors
        here = (~elsewhere).to(probabilities.dtype).unsqueeze(-1)
        grad_logits = probabilities.scatter_add(-1, own.unsqueeze(-1), -here)
        return grad_logits * grad.unsqueeze(-1), None, None, None, None


class TiedHead(nn.Module):
    """Logits of the rank's own rows of the embedding."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return F.linear(_Copy.apply(x, self.group), table)


class Block(nn.Module):
    """A residual MLP over the mean of the tokens so far, whole on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype).view(1, -1, 1)
        past = h.cumsum(dim=1) / counts
        return x + self.down(F.gelu(self.up(torch.cat((h, past), dim=-1))))


class Model(nn.Module):
    """Tokens to this rank's logits."""

    def __init__(self, layers: int, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.embedding = VocabularyEmbedding(group, fault)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = TiedHead(group)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x), self.embedding.weight)


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    """The tokens and targets of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).to(ctx.device)
    return text[:, :-1], text[:, 1:]


@requires(divides("microbatches", "dp"))
def train(ctx: Context, fault: str = "", microbatches: int = 4, steps: int = 2) -> None:
    """Train with AdamW on next-token prediction."""
    tp = ctx.group("tp")
    model = Model(2, tp, fault if ctx.world_size > 1 else "").to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    sum_group = tp
    if fault == "sum-over-dp" and ctx.world_size > 1:
        sum_group = ctx.group("dp")  # fault: sum-over-dp
    for step in range(steps):
        with ctx.step():
            for number in ctx.microbatches(microbatches):
                with ctx.microbatch(number):
                    inputs, targets = batch(ctx, step, number)
                    logits = model(inputs)
                    wide = torch.promote_types(logits.dtype, torch.float32)
                    losses = _CrossEntropy.apply(
                        logits.to(wide), targets, model.embedding.start, tp, sum_group
                    )
                    loss = losses.mean() / microbatches
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
