"""FreezeOut (Brock et al., 2017): early layers are trained for some epochs, and frozen then.

The optimizer keeps all layers; those that are frozen have no gradient any more.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


def train(
    *,
    seed: int = 0,
    steps: int = 12,
    width: int = 6,
    every: int = 4,
    lr: float = 0.05,
) -> list[float]:
    """Classify bars; after each `every` steps, one more layer is frozen."""
    torch.manual_seed(seed)
    net = nn.Sequential()
    net.add_module("conv1", nn.Conv2d(1, width, 3, padding=1))
    net.add_module("relu1", nn.ReLU())
    net.add_module("pool1", nn.MaxPool2d(2))
    net.add_module("conv2", nn.Conv2d(width, width, 3, padding=1))
    net.add_module("relu2", nn.ReLU())
    net.add_module("flatten", nn.Flatten())
    net.add_module("fc", nn.Linear(16 * width, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, nesterov=True)
    to_freeze = ["conv1", "conv2"]
    losses = []
    for iteration in range(steps):
        if iteration and iteration % every == 0 and to_freeze:
            layer = net.get_submodule(to_freeze.pop(0))
            for p in layer.parameters():
                p.requires_grad = False
                p.grad = None
        y = torch.randint(4, (20,))
        x = 0.3 * torch.randn(20, 1, 8, 8)
        for n, label in enumerate(y.tolist()):
            x[n, 0, :, 2 * label] += 1.5
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses
