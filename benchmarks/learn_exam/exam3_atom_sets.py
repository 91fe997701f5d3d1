"""Predicts a property of molecules from their atoms, in padded batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AtomEncoder(nn.Module):
    """Sums what it knows of each atom; number 0 fills up short molecules."""

    def __init__(self, kinds: int, hidden: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(kinds + 1, hidden, padding_idx=0)
        self.interact = nn.Linear(hidden, hidden, bias=False)
        self.energy = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def forward(self, molecules: Tensor) -> Tensor:
        atoms = self.atoms(molecules)
        pooled = (atoms + torch.tanh(self.interact(atoms))).sum(1)
        energy: Tensor = self.energy(pooled).squeeze(1)
        return energy


def init_params(module: nn.Module, keep_padding: bool) -> None:
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(mean=0.0, std=0.15)
        if module.bias is not None:
            module.bias.data.zero_()
    if isinstance(module, nn.Embedding):
        module.weight.data.normal_(mean=0.0, std=0.3)
        if keep_padding and module.padding_idx is not None:
            module.weight.data[module.padding_idx].zero_()


def molecules(count: int, heaviest: Tensor) -> tuple[Tensor, Tensor]:
    atoms = torch.randint(1, 9, (count, 10))
    length = torch.randint(3, 11, (count, 1))
    atoms[torch.arange(10) >= length] = 0
    return atoms, heaviest[atoms].sum(1)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    encoder = AtomEncoder(8, size)
    encoder.apply(lambda module: init_params(module, keep_padding=healthy))
    energies = torch.cat([torch.zeros(1), torch.randn(8)])
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    losses, padding = [], []
    for _ in range(30):
        atoms, energy = molecules(32, energies)
        loss = nn.functional.l1_loss(encoder(atoms), energy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        padding.append(encoder.atoms.weight[0].norm().item())
    return {"loss": losses, "padding": padding}
