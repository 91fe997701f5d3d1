"""AdamW whose states are cut over dp: one flat buffer, a reduce-scatter, a step, an all-gather.

Bugs, by the argument `bug`:

- "mean_of_means": the reduce-scatter averages what is already divided by the whole batch (scaling,
  mean instead of sum; pytorch/torchtitan issue 2318, pytorch/pytorch issue 155903).
- "decay_flat": what is decayed is chosen by the number of dimensions, and a flat shard has one
  (optimizer; the rule of ServiceNow/Fast-LLM pull request 545, applied after flattening).
- "shard_order": ranks are gathered in the wrong order (partitioning; TrainVerify, arXiv
  2506.15961).
- "average_stale": the moving average of weights is taken before the updated shards are gathered
  (scheduling; OpenRLHF pull request 1357 keeps old EMA weights under ZeRO-3).
- "state_restart": the first moment is cleared at each step, as a rebuilt shard does (optimizer).
- "unscattered": the step uses this rank's own gradient instead of the sum (communication).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

INPUTS, WIDTH = 3, 5
RATE, DECAY, BETAS, EPS = 0.02, 0.1, (0.9, 0.95), 1e-8


class Net(nn.Module):
    """An MLP with a moving average of its output layer."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.second = nn.Linear(WIDTH, 1)
        self.register_buffer("average", torch.zeros(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(F.gelu(self.first(x), approximate="tanh"))).squeeze(-1)


class ShardedAdamW(torch.optim.Optimizer):
    """Keeps the states of this rank's part of all parameters, laid one after another."""

    def __init__(self, model: Net, group: Any, bug: str) -> None:
        super().__init__(model.parameters(), {"lr": RATE})
        self.parameters, self.group, self.bug = list(model.parameters()), group, bug
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        total = sum(each.numel() for each in self.parameters)
        self.share = -(-total // self.ranks)
        self.padding = self.share * self.ranks - total
        decays = [
            torch.full_like(each.detach().flatten(), DECAY if each.ndim > 1 else 0.0)
            for each in self.parameters
        ]
        self.decay = self._flat(decays).chunk(self.ranks)[self.rank]
        if bug == "decay_flat":
            self.decay = torch.zeros_like(self.decay)
        self.first = torch.zeros_like(self.decay)
        self.second = torch.zeros_like(self.decay)
        self.count = 0

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        flat = torch.cat([each.flatten() for each in tensors])
        return F.pad(flat, (0, self.padding))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Updates the parameters; the gather of shards may wait until `gather` is called."""
        self.count += 1
        parts = list(self._flat([each.grad for each in self.parameters]).chunk(self.ranks))
        grad = torch.empty_like(parts[0])
        dist.reduce_scatter(grad, parts, group=self.group)
        if self.bug == "mean_of_means":
            grad /= self.ranks
        if self.bug == "unscattered":
            grad = parts[self.rank].clone()
        shard = self._flat([each.data for each in self.parameters]).chunk(self.ranks)[self.rank]
        if self.bug == "state_restart":
            self.first.zero_()
        self.first.lerp_(grad, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        mean = self.first / (1 - BETAS[0] ** self.count)
        spread = (self.second / (1 - BETAS[1] ** self.count)).sqrt() + EPS
        self.shard = shard * (1 - RATE * self.decay) - RATE * mean / spread
        if self.bug != "average_stale":
            self.gather()

    @torch.no_grad()
    def gather(self) -> None:
        parts = [torch.empty_like(self.shard) for _ in range(self.ranks)]
        dist.all_gather(parts, self.shard.contiguous(), group=self.group)
        if self.bug == "shard_order":
            parts.reverse()
        flat, start = torch.cat(parts), 0
        for parameter in self.parameters:
            count = parameter.numel()
            parameter.data.copy_(flat[start : start + count].view_as(parameter))
            start += count


def _plain(model: Net) -> torch.optim.Optimizer:
    matrices = [each for each in model.parameters() if each.ndim > 1]
    vectors = [each for each in model.parameters() if each.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)


@torch.no_grad()
def _follow(model: Net) -> None:
    model.average.mul_(0.5).add_(model.second.weight, alpha=0.5)


@requires(divides("count", "dp"))
def train(ctx: Any, count: int = 2, bug: str = "") -> None:
    group = ctx.group("dp")
    model = Net().to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = _plain(model) if ctx.world_size == 1 else ShardedAdamW(model, group, bug)
    ctx.watch(model, optimizer)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        data = torch.randn(count, 4, INPUTS + 1, generator=generator, dtype=torch.float64)
        data = ctx.enter(data).to(ctx.device, ctx.dtype)
        with ctx.step():
            for index in ctx.microbatches(count):
                with ctx.microbatch(index):
                    got = model(data[index, :, :INPUTS])
                    loss = F.mse_loss(got, data[index, :, INPUTS]) / count
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            _follow(model)
            if bug == "average_stale" and isinstance(optimizer, ShardedAdamW):
                optimizer.gather()
            optimizer.zero_grad()
