"""Reads coarse digits that were made harder: each image is moved against the network first."""

import torch
from torch import nn
from torch.nn import functional as F


class Digits:
    def __init__(self, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.shapes = (torch.rand(6, 1, 6, 6, generator=self.random) < 0.4).float()

    def batch(self, n):
        digit = torch.randint(6, (n,), generator=self.random)
        noise = 0.3 * torch.randn(n, 1, 6, 6, generator=self.random)
        return self.shapes[digit] + noise, digit


def harder(net, image, digit, reach=0.15, rounds=2):
    """Images within `reach` of the given ones that the network reads worse."""
    was_training = net.training
    net.eval()
    moved = image.clone()
    for _ in range(rounds):
        moved.requires_grad_(True)
        (slope,) = torch.autograd.grad(F.cross_entropy(net(moved), digit), moved)
        moved = (moved + 0.1 * slope.sign()).detach()
        moved = image + (moved - image).clamp(-reach, reach)
    net.train(was_training)
    return moved


def train(seed: int = 0, size: int = 8) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    digits = Digits(seed + 17)
    net = nn.Sequential(
        nn.Conv2d(1, size, 3),
        nn.BatchNorm2d(size),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(size * 16, 6),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    losses = []
    for _ in range(30):
        image, digit = digits.batch(24)
        loss = F.cross_entropy(net(harder(net, image, digit)), digit)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
