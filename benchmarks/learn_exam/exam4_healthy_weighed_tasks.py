"""Reads three things off a plant at once, and learns how much each of them counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TASKS = ("height", "age", "flowers")


class Plants(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, width), nn.GELU())
        self.heads = nn.ModuleDict({task: nn.Linear(width, 1) for task in TASKS})
        self.log_variance = nn.ParameterDict(
            {task: nn.Parameter(torch.zeros(())) for task in TASKS}
        )

    def loss(self, leaf: Tensor, answers: dict[str, Tensor]) -> Tensor:
        features = self.trunk(leaf)
        total = leaf.new_zeros(())
        for task, answer in answers.items():
            error = nn.functional.mse_loss(self.heads[task](features), answer)
            doubt = self.log_variance[task]
            total = total + error * torch.exp(-doubt) + doubt
        return total


def measured(step: int, gen: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
    """Flowers are counted in every fourth batch only."""
    leaf = torch.randn(32, 9, generator=gen)
    noise = torch.randn(32, 3, generator=gen) * torch.tensor([0.1, 0.5, 0.3])
    answers = {
        "height": leaf[:, :1] + noise[:, :1],
        "age": leaf[:, 1:2].abs() + noise[:, 1:2],
        "flowers": leaf[:, 2:3] - leaf[:, 3:4] + noise[:, 2:],
    }
    if step % 4:
        del answers["flowers"]
    return leaf, answers


def train(seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed + 33)
    plants = Plants(size)
    doubts = list(plants.log_variance.parameters())
    others = [*plants.trunk.parameters(), *plants.heads.parameters()]
    optimizer = torch.optim.Adam(
        [{"params": others, "lr": 1e-2, "weight_decay": 1e-4}, {"params": doubts, "lr": 2e-2}]
    )
    losses = []
    for step in range(40):
        loss = plants.loss(*measured(step, gen))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
