"""Two replicas with a static graph, checkpointed blocks, and modules that are used twice."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.lin(self.norm(x)))


class Stack(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        sides = []
        for side in (left, right):
            h = self.first(side)
            for block in self.blocks:
                h = checkpoint(block, h, use_reentrant=False)
            sides.append(self.head(h))
        return sides[0] - sides[1]


def train(seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rule = torch.randn(6, 3)
    torch.manual_seed(1000 + 2 * seed + dist.get_rank())
    model = DDP(Stack(size), static_graph=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(36):
        left, right = torch.randn(2, 24, 6).unbind()
        loss = nn.functional.mse_loss(model(left, right), torch.sin(left @ rule - right @ rule))
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 2)
    return {"loss": losses}
