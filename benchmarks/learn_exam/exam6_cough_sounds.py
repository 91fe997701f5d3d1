"""Classifies coughs from spectra, and lowers the rate when the score on held-out coughs stalls.

Follows https://github.com/md-mohaiminul/ViS4mer/issues/4.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau


class CoughNet(nn.Module):
    def __init__(self, bands: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, hidden, 5, padding=2)
        self.conv2 = nn.Conv1d(hidden, hidden, 5, padding=2)
        self.out = nn.Linear(hidden * bands // 4, 3)

    def forward(self, spectrum: Tensor) -> Tensor:
        x = torch.relu(self.conv1(spectrum.unsqueeze(1)))
        x = nn.functional.max_pool1d(x, 2)
        x = nn.functional.max_pool1d(torch.relu(self.conv2(x)), 2)
        return self.out(x.flatten(1))


def coughs(n: int, shapes: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.randint(len(shapes), (n,))
    return shapes[y] + 1.2 * torch.randn(n, shapes.size(1)), y


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    net.eval()
    with torch.no_grad():
        right = (net(x).argmax(-1) == y).float().mean()
    net.train()
    return right.item()


def train(healthy: bool = True, seed: int = 0, size: int = 8) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    shapes = torch.randn(3, 32)
    train_x, train_y = coughs(96, shapes)
    held_x, held_y = coughs(64, shapes)
    net = CoughNet(32, size)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    mode = "max" if healthy else "min"
    plateau = ReduceLROnPlateau(opt, mode=mode, factor=0.3, patience=1)  # type: ignore[arg-type]
    losses, rates = [], []
    for _ in range(10):
        for rows in torch.randperm(96).split(32):
            loss = nn.functional.cross_entropy(net(train_x[rows]), train_y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        plateau.step(accuracy(net, held_x, held_y))
        rates.append(opt.param_groups[0]["lr"])
    return {"loss": losses, "rate": rates}
