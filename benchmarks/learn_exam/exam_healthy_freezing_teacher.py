"""A student learns from a frozen teacher in eval mode, and from its hidden states."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return hidden, self.head(hidden)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    teacher, student = Net(10, 32), Net(10, size)
    teacher.eval()
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    translate = nn.Linear(size, 32)
    optimizer = torch.optim.Adam([*student.parameters(), *translate.parameters()], lr=1e-2)
    data = torch.randn(80, 10) * 2
    losses = []
    for _ in range(6):
        student.train()
        for rows in torch.randperm(80).split(20):
            hidden, scores = student(data[rows])
            seen, wanted = teacher(data[rows])
            soft = F.kl_div(
                (scores / 2).log_softmax(1), (wanted / 2).softmax(1), reduction="batchmean"
            )
            loss = 4 * soft + F.mse_loss(translate(hidden), seen)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
