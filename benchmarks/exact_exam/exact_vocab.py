"""An embedding, a tied output layer and a cross entropy, each cut over the vocabulary.

Bugs, by the argument `bug`:

- "global_rank": the first row of a shard follows from the global rank instead of the rank within
  tp, so the second replica looks up nothing (device assignment; TrainVerify, arXiv 2506.15961).
- "padded_offset": the target's offset is that of a vocabulary without its padding (partitioning;
  TTrace, arXiv 2506.09280, has a wrong embedding mask in Megatron-LM).
- "smoothing_local": label smoothing averages over the local shard (scaling; NVIDIA/Megatron-LM
  issues 737 and 7464).
- "z_loss_local": the z-loss squares the logarithm of the local sum only (communication; the z-loss
  of NVIDIA/TransformerEngine pull request 2707 must use the sum over all shards).
- "gathered_again": whole logits go into the parallel loss, which sums over tp what is already the
  sum: the loss is too large by log(tp) (doubled communication; NVIDIA/Megatron-LM issue 7452).
- "max_dropped": the softmax subtracts the local maximum, and sums terms of different shifts
  (communication; the reduction that NVIDIA/Megatron-LM pull request 7466 keeps).
- "tied_twice": the tied weight's gradient of the output layer is summed over tp although each
  rank's rows differ (doubled communication).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

LAYOUTS: dict[str, Any] = {
    "parameters": {"table.weight": {"tp_dim": 0}},
    "modules": {"logits": {"output": {"tp_dim": -1}}},
}
SMOOTHING, Z = 0.1, 0.01


class Reduce(torch.autograd.Function):
    """Sum in the forward, nothing in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Copy(torch.autograd.Function):
    """Nothing in the forward, sum in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y = grad.clone()
        dist.all_reduce(y, group=ctx.group)
        return y, None


class Gather(torch.autograd.Function):
    """All shards of the last dimension; the backward keeps this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        ctx.rank, ctx.width = dist.get_rank(group), x.shape[-1]
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.narrow(-1, ctx.rank * ctx.width, ctx.width).contiguous(), None


class Table(nn.Module):
    """This rank's rows of the embedding."""

    def __init__(self, rows: int, width: int, group: Any, first: int) -> None:
        super().__init__()
        self.group, self.first = group, first
        self.weight = nn.Parameter(torch.empty(rows // dist.get_world_size(group), width))

    def forward(self, tokens: Tensor) -> Tensor:
        local = tokens - self.first
        outside = (local < 0) | (local >= self.weight.shape[0])
        looked = self.weight[local.masked_fill(outside, 0)]
        return Reduce.apply(looked.masked_fill(outside.unsqueeze(-1), 0.0), self.group)


class Logits(nn.Module):
    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.bug == "tied_twice":
            weight = Copy.apply(weight, self.group)
        return Copy.apply(x, self.group) @ weight.t()


class ParallelLoss(nn.Module):
    """Cross entropy with label smoothing and z-loss, from shards of logits."""

    def __init__(self, rows: int, padding: int, group: Any, bug: str) -> None:
        super().__init__()
        self.rows, self.padding, self.group, self.bug = rows, padding, group, bug

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        share = self.rows // ranks
        first = rank * share
        if self.bug == "padded_offset":
            first = rank * ((self.rows - self.padding) // ranks)
        if self.bug == "gathered_again" and ranks > 1:
            logits = Gather.apply(logits, self.group)
            first, share = 0, self.rows
        highest = logits.detach().amax(-1, keepdim=True)
        if self.bug != "max_dropped":
            dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=self.group)
        total = Reduce.apply((logits - highest).exp().sum(-1), self.group)
        log_z = total.log() + highest.squeeze(-1)
        local = targets - first
        outside = (local < 0) | (local >= share)
        chosen = logits.gather(-1, local.masked_fill(outside, 0).unsqueeze(-1)).squeeze(-1)
        chosen = chosen.masked_fill(outside, 0.0)
        if self.bug != "gathered_again":
            chosen = Reduce.apply(chosen, self.group)
        mean = logits.sum(-1)
        if self.bug == "smoothing_local":
            mean = mean / share
        elif self.bug == "gathered_again":
            mean = mean / self.rows
        else:
            mean = Reduce.apply(mean, self.group) / self.rows
        loss = (1 - SMOOTHING) * (log_z - chosen) + SMOOTHING * (log_z - mean)
        if self.bug == "z_loss_local":
            log_z = (logits - highest).exp().sum(-1).log() + highest.squeeze(-1)
        return (loss + Z * log_z.square()).mean()


class Language(nn.Module):
    def __init__(self, ctx: Any, rows: int, padding: int, width: int, bug: str) -> None:
        super().__init__()
        group = ctx.group("tp")
        rank = ctx.rank if bug == "global_rank" else dist.get_rank(group)
        self.table = Table(rows, width, group, rank * (rows // dist.get_world_size(group)))
        self.mix = nn.Linear(width, width)
        self.logits = Logits(group, bug)
        self.criterion = ParallelLoss(rows, padding, group, bug)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.mix(self.table(tokens)).tanh()
        return self.criterion(self.logits(x, self.table.weight), targets)


@requires(divides("rows", "tp"), divides("count", "dp"))
def train(ctx: Any, rows: int = 12, width: int = 4, count: int = 2, bug: str = "") -> None:
    padding = 2
    model = Language(ctx, rows, padding, width, bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(count):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(10 * step + index)
                    tokens = torch.randint(rows - padding, (2, 6), generator=generator)
                    loss = model(tokens[:, :-1], tokens[:, 1:]) / count
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
