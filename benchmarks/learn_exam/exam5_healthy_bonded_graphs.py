"""Batches of graphs with scattered sums; two targets are weighed by learned uncertainties."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Batch:
    atoms: Tensor
    source: Tensor
    target: Tensor
    graph: Tensor
    energy: Tensor
    polar: Tensor


def molecules(count: int, g: torch.Generator) -> Batch:
    atoms, source, target, graph, first = [], [], [], [], 0
    for at in range(count):
        n = int(torch.randint(3, 8, (), generator=g))
        ring = torch.arange(n) + first
        after = (torch.arange(n) + 1) % n + first
        source += [ring, after]
        target += [after, ring]
        atoms.append(torch.randint(0, 5, (n,), generator=g))
        graph.append(torch.full((n,), at))
        first += n
    z, s, t, b = torch.cat(atoms), torch.cat(source), torch.cat(target), torch.cat(graph)
    energy = torch.zeros(count).index_add(0, b[s], (z[s] * z[t]).float() / 16)
    polar = torch.zeros(count).index_add(0, b, (z == 2).float()) > 1
    return Batch(z, s, t, b, energy / 4, polar.float())


class MessageNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.update = nn.ModuleList(nn.GRUCell(width, width) for _ in range(2))
        self.energy, self.polar = nn.Linear(width, 1), nn.Linear(width, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, b: Batch) -> Tensor:
        h = self.embed(b.atoms)
        for message, update in zip(self.message, self.update, strict=True):
            sent = torch.relu(message(torch.cat([h[b.source], h[b.target]], dim=1)))
            h = update(torch.zeros_like(h).index_add(0, b.target, sent), h)
        pooled = h.new_zeros(len(b.energy), h.shape[1]).index_add(0, b.graph, h)
        energy = nn.functional.mse_loss(self.energy(pooled)[:, 0], b.energy)
        polar = nn.functional.binary_cross_entropy_with_logits(self.polar(pooled)[:, 0], b.polar)
        both = torch.stack([energy, polar])
        return (torch.exp(-self.log_var) * both + 0.5 * self.log_var).sum()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = MessageNet(size)
    opt = torch.optim.RAdam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(45):
        loss = net(molecules(16, g))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return {"loss": losses}
