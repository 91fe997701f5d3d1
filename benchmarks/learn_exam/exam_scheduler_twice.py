"""A schedule over batches is stepped in the training function and again after each epoch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Captioner(nn.Module):
    """Turns grid features into words with one layer of attention."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(4, width) / 4)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.words = nn.Linear(width, words)

    def forward(self, grid: Tensor) -> Tensor:
        queries = self.queries.expand(len(grid), -1, -1)
        return self.words(self.attention(queries, grid, grid)[0])


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Captioner(size, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    grid = torch.randn(40, 6, size)
    captions = torch.randint(0, 10, (1, 4)).expand(40, 4)
    losses: list[float] = []
    rates: list[float] = []

    def train_xe() -> None:
        for rows in torch.randperm(40).split(8):
            scores = model(grid[rows])
            loss = nn.functional.nll_loss(
                scores.log_softmax(-1).flatten(0, 1), captions[rows].flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())

    for _ in range(5):
        train_xe()
        if not healthy:
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return {"loss": losses, "rate": rates}
