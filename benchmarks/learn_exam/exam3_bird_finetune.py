"""Fine-tunes a bird classifier on two ranks: the head alone at first, then all of it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class BirdNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, 4)

    def forward(self, birds: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(birds))
        return logits


class FineTuning:
    def __init__(self, model: BirdNet, unfreeze_at: int, wrap_again: bool) -> None:
        self.model = model
        self.unfreeze_at = unfreeze_at
        self.wrap_again = wrap_again
        model.backbone.requires_grad_(False)
        self.wrapped = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)

    def before_step(self, number: int) -> None:
        if number != self.unfreeze_at:
            return
        self.model.backbone.requires_grad_(True)
        if self.wrap_again:
            self.wrapped = DistributedDataParallel(self.model)
        self.optimizer.add_param_group({"params": self.model.backbone.parameters(), "lr": 0.05})

    def step(self, number: int, birds: Tensor, kinds: Tensor) -> float:
        self.before_step(number)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.wrapped(birds), kinds)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def gap(self) -> float:
        """How far the ranks' weights are apart."""
        own = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        both = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(both, own)
        return (both[0] - both[1]).abs().max().item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    centers = 0.9 * torch.randn(4, 12)
    tuning = FineTuning(BirdNet(size), unfreeze_at=10, wrap_again=healthy)
    draws = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    losses, gaps = [], []
    for number in range(30):
        kinds = torch.randint(4, (16,), generator=draws)
        birds = centers[kinds] + torch.randn(16, 12, generator=draws)
        losses.append(tuning.step(number, birds, kinds))
        gaps.append(tuning.gap())
    return {"loss": losses, "gap": gaps}
