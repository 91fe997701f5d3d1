"""Names minerals by spectrum: a net with batch norm, whose statistics stand still after a while.

Follows https://github.com/pytorch/vision/issues/8250.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

# As in the configuration of the first implementation, which kept this share of the old average.
BN_MOMENTUM = 0.9


def conv_bn(cin: int, cout: int, norm: Callable[[int], nn.Module]) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(cin, cout, 3, padding=1, bias=False), norm(cout), nn.ReLU())


def build(width: int, momentum: float) -> nn.Sequential:
    norm = partial(nn.BatchNorm1d, momentum=momentum, eps=1e-3)
    return nn.Sequential(
        conv_bn(1, width, norm),
        conv_bn(width, width, norm),
        nn.AvgPool1d(4),
        nn.Flatten(),
        nn.Linear(width * 8, 4),
    )


def freeze_statistics(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()


def measure(lines: Tensor, count: int) -> tuple[Tensor, Tensor]:
    kind = torch.randint(4, (count,))
    light = 1 + 0.5 * torch.rand(count, 1)
    spectrum = light * lines[kind] + 0.5 * torch.randn(count, 32)
    return spectrum.unsqueeze(1), kind


def train(healthy: bool = True, seed: int = 0, size: int = 12) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    lines = torch.rand(4, 32) * (torch.rand(4, 32) > 0.6) * 2
    net = build(size, momentum=1 - BN_MOMENTUM if healthy else BN_MOMENTUM)
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3, momentum=0.5)
    losses = []
    for step in range(30):
        if step == 20:
            freeze_statistics(net)
        x, y = measure(lines, 10)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        x, y = measure(lines, 64)
        held = nn.functional.cross_entropy(net(x), y).item()
    return {"loss": losses, "held": [held]}
