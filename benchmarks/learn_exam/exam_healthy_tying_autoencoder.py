"""An autoencoder decodes with the transposed weight of its encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TiedAutoencoder(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, inputs))
        nn.init.xavier_uniform_(self.weight)
        self.inside, self.outside = (nn.Parameter(torch.zeros(n)) for n in (width, inputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(F.linear(x, self.weight, self.inside))
        return F.linear(hidden, self.weight.t(), self.outside)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = TiedAutoencoder(10, size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.rand(96, 4) @ torch.rand(4, 10)
    losses = []
    for _ in range(6):
        for rows in torch.randperm(96).split(24):
            optimizer.zero_grad()
            loss = F.mse_loss(model(data[rows]), data[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
