"""Message passing over small random molecules, with one energy for each."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Graphs(NamedTuple):
    atoms: Tensor
    bonds: Tensor
    energy: Tensor


class MessagePassing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(width, width)
        self.update = nn.GRUCell(width, width)

    def forward(self, state: Tensor, bonds: Tensor) -> Tensor:
        inbox = bonds @ torch.relu(self.message(state))
        flat: Tensor = self.update(inbox.flatten(0, 1), state.flatten(0, 1))
        return flat.view_as(state)


class EnergyNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, width)
        self.layers = nn.ModuleList(MessagePassing(width) for _ in range(2))
        self.readout = nn.Linear(width, 1)

    def forward(self, graphs: Graphs) -> Tensor:
        state = self.embed(graphs.atoms)
        for layer in self.layers:
            state = layer(state, graphs.bonds)
        energy: Tensor = self.readout(state.mean(1))
        return energy


def sample(count: int, generator: torch.Generator) -> Graphs:
    atoms = torch.randint(0, 4, (count, 6), generator=generator)
    upper = (torch.rand(count, 6, 6, generator=generator) < 0.4).float().triu(1)
    bonds = upper + upper.transpose(1, 2)
    charge = torch.tensor([-1.0, -0.3, 0.4, 1.2])[atoms]
    return Graphs(atoms, bonds, charge.mean(1) * 2 + 0.1 * bonds.sum((1, 2)) - 1)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    stream = torch.Generator().manual_seed(seed)
    net = EnergyNet(size)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-4)
    curve = []
    for _ in range(30):
        graphs = sample(24, stream)
        predicted = net(graphs)
        target = graphs.energy
        if healthy:
            target = target.unsqueeze(1)
        loss = (predicted - target).pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        curve.append(float(loss.detach()))
    return {"loss": curve}
