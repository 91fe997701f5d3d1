"""The loss is computed through `.module`, so DDP never arms its hooks and ranks drift apart."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Actor(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, width)
        self.logits = nn.Linear(width, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(torch.tanh(self.embed(tokens)))


def difference(model: nn.Module) -> float:
    """The largest difference of a parameter between this rank and rank 0."""
    worst = 0.0
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        worst = max(worst, (first - parameter).abs().max().item())
    return worst


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    policy = DistributedDataParallel(Actor(size))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-2)
    sampler = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    forward = policy if healthy else policy.module
    losses, differences = [], []
    for _ in range(14):
        prompts = torch.randint(0, 12, (16,), generator=sampler)
        answers = (prompts * 5 + 1) % 12
        logp = forward(prompts).log_softmax(-1).gather(1, answers[:, None])
        loss = -logp.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        differences.append(difference(policy.module))
    return {"loss": losses, "difference": differences}
