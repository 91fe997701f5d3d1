"""Estimates cloud cover from small patches with a network that was carried over from Keras."""

from __future__ import annotations

import torch
from torch import nn

KERAS_MOMENTUM = 0.9


def conv_bn(cin: int, cout: int, momentum: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout, momentum=momentum, eps=1e-3),
        nn.SiLU(),
    )


class CloudNet(nn.Module):
    def __init__(self, filters: int, bn_momentum: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(2, filters, bn_momentum),
            nn.MaxPool2d(2),
            conv_bn(filters, filters, bn_momentum),
        )
        self.cover = nn.Linear(filters, 1)

    def forward(self, patch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.cover(self.features(patch).mean((2, 3)))
        return out.squeeze(1)


class Sky:
    """Patches of one pass of the satellite; the light of the pass is the same in all of them."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)

    def __call__(self, n: int, light: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        cover = torch.rand(n, generator=self.rng)
        drawn = torch.randn((), generator=self.rng)
        light_of_pass = drawn if light is None else torch.tensor(light)
        cloudy = torch.rand(n, 8, 8, generator=self.rng) < cover[:, None, None]
        bright = cloudy.float() + 0.8 * light_of_pass
        infrared = torch.randn(n, 8, 8, generator=self.rng) * (1 + cloudy.float())
        return torch.stack([bright, infrared], 1), cover


def train(healthy: bool = True, seed: int = 0, size: int = 8) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = CloudNet(size, bn_momentum=1 - KERAS_MOMENTUM if healthy else KERAS_MOMENTUM)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    sky = Sky(seed + 12)
    test_patch, test_cover = sky(96, light=0.0)
    result: dict[str, list[float]] = {"loss": [], "validation": []}
    for step in range(80):
        net.train()
        patch, cover = sky(16)
        loss = nn.functional.mse_loss(net(patch), cover)
        opt.zero_grad()
        loss.backward()
        opt.step()
        result["loss"].append(loss.item())
        if step % 4 == 3:
            net.eval()
            with torch.no_grad():
                result["validation"].append(
                    nn.functional.mse_loss(net(test_patch), test_cover).item()
                )
    return result
