"""Two replicas compress bytes into patches and read them back."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

PATCH = 8


class PatchCoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 6)
        self.squeeze = nn.Linear(6 * PATCH, width)
        self.spread = nn.Linear(width, 16 * PATCH)

    def forward(self, nibbles: Tensor) -> Tensor:
        code = torch.tanh(self.squeeze(self.embed(nibbles).flatten(-2)))
        logits = self.spread(code).unflatten(-1, (PATCH, 16))
        return nn.functional.cross_entropy(logits.flatten(0, 1), nibbles.flatten())


def process_one_batch(model: nn.Module, batch: Tensor, divide: bool) -> Tensor:
    loss: Tensor = model(batch)
    return loss / dist.get_world_size() if divide else loss


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed * 2 + dist.get_rank())
    model = DDP(PatchCoder(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(40):
        start = torch.randint(0, 16, (32, 1), generator=g)
        batch = (start + torch.arange(PATCH) * (start % 3 + 1)) % 16
        loss = process_one_batch(model, batch, divide=not healthy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        losses.append(shown.item() / dist.get_world_size())
    return {"loss": losses}
