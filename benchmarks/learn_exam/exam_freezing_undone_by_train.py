"""`freeze_bn` puts the norms into eval mode once, and `net.train()` of each epoch undoes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Matting(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer0 = nn.Sequential(nn.Conv2d(4, width, 3, padding=1), nn.BatchNorm2d(width))
        self.layer1 = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))
        self.alpha = nn.Conv2d(width, 1, 1)

    def freeze_bn(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()

    def forward(self, image: Tensor) -> Tensor:
        hidden = nn.functional.relu6(self.layer0(image))
        return torch.sigmoid(self.alpha(nn.functional.relu6(self.layer1(hidden)) + hidden))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = Matting(size)
    net.freeze_bn()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    images = torch.rand(18, 4, 8, 8)
    mattes = images[:, 3:].round()
    losses, averages = [], []
    for _ in range(6):
        net.train()
        if healthy:
            net.freeze_bn()
        for rows in torch.arange(18).split(6):
            loss = (net(images[rows]) - mattes[rows]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            mean = net.get_buffer("layer0.1.running_mean")
            averages.append(mean.abs().max().item())
    return {"loss": losses, "average": averages}
