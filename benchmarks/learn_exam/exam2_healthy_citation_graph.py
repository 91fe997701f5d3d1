"""Node classification in one fixed graph, where only some nodes have labels for training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Convolve(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(inputs, outputs)))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        mixed: Tensor = torch.sparse.mm(adjacency, x @ self.weight)
        return mixed + self.bias


class GCN(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = Convolve(inputs, width), Convolve(width, classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.dropout(x, 0.3, training=self.training)
        x = F.dropout(F.relu(self.first(x, adjacency)), 0.3, training=self.training)
        scores: Tensor = self.second(x, adjacency)
        return scores


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    topics = torch.arange(60) % 3
    near = torch.where(topics.unsqueeze(1) == topics, 0.2, 0.02)
    links = (torch.rand(60, 60) < near).float().triu(1)
    links = links + links.T + torch.eye(60)
    scale = links.sum(1).rsqrt()
    adjacency = (scale.unsqueeze(1) * links * scale).to_sparse()
    words = (torch.rand(60, 12) < 0.1 + 0.4 * F.one_hot(topics, 3).repeat(1, 4)).float()
    known, held_out = torch.randperm(60).split([24, 36])
    net = GCN(12, size, 3)
    optimizer = torch.optim.Adam(
        [
            {"params": net.first.parameters(), "weight_decay": 5e-3},
            {"params": net.second.parameters(), "weight_decay": 0.0},
        ],
        lr=3e-2,
    )
    losses, right = [], []
    for _ in range(28):
        net.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(words, adjacency)[known], topics[known])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            guesses = net(words, adjacency).argmax(1)
        right.append((guesses == topics)[held_out].float().mean().item())
    return {"loss": losses, "right": right}
