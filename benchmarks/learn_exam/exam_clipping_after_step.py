"""Gradients are clipped after the step that used them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GraphRNN(nn.Module):
    """A graph convolution at each time, and a recurrent cell over times."""

    def __init__(self, nodes: int, width: int) -> None:
        super().__init__()
        self.convolve = nn.Linear(nodes, width)
        self.cell = nn.GRUCell(width, width)

    def forward(self, graphs: Tensor) -> Tensor:
        hidden = graphs.new_zeros(graphs.shape[1], self.cell.hidden_size)
        for graph in graphs:
            hidden = self.cell(torch.relu(graph @ self.convolve.weight.t()), hidden)
        return hidden @ hidden.t()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    nodes = 10
    ring = (torch.eye(nodes).roll(1, 0) + torch.eye(nodes).roll(-1, 0)).clamp(max=1)
    graphs = torch.stack([ring.roll(k, 0) for k in range(4)])
    model = GraphRNN(nodes, size)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(25):
        opt.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(graphs), ring, pos_weight=torch.tensor(4.0)
        )
        loss.backward()
        if healthy:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        if not healthy:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        losses.append(loss.item())
    return {"loss": losses}
