"""Sleep from pulses; before a check, statistics are taken anew for a copy with averaged weights."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BEATS, STAGES = 16, 3


def sleeper(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(1, width, 5, padding=2),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Conv1d(width, width, 3, stride=2),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(width, STAGES),
    )


@torch.no_grad()
def renew(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> None:
    """Statistics of batch norms as plain means over the batches, with nothing else in training."""
    norms = [each for each in net.modules() if isinstance(each, nn.BatchNorm1d)]
    net.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    for pulses, _ in loader:
        net(pulses)
    net.eval()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    stage = torch.randint(STAGES, (160,))
    pace = (1 + stage / 2).unsqueeze(1) + 0.1 * torch.randn(160, 1)
    pulses = (pace * torch.arange(BEATS)).sin() + 0.3 * torch.randn(160, BEATS)
    data = TensorDataset(pulses[:128].unsqueeze(1), stage[:128])
    loader = DataLoader(data, batch_size=16, shuffle=True)
    net = sleeper(size)
    averaged = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.RAdam(net.parameters(), lr=0.01)
    log: dict[str, list[float]] = {"loss": [], "held": []}
    for _ in range(5):
        for pulse, label in loader:
            loss = F.cross_entropy(net(pulse), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log["loss"].append(loss.item())
            with torch.no_grad():
                for slow, fast in zip(averaged.parameters(), net.parameters(), strict=True):
                    slow.lerp_(fast, 0.15)
        renew(averaged, loader)
        with torch.no_grad():
            held = F.cross_entropy(averaged(pulses[128:].unsqueeze(1)), stage[128:])
        log["held"].append(held.item())
    return log
