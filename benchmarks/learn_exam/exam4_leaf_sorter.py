"""Sorts leaves by their outline; the rate follows the share of leaves that are sorted correctly."""

import torch
import torch.nn as nn
import torch.optim as optim


def make_leaves(n, kinds, g):
    kind = torch.randint(kinds, (n,), generator=g)
    angle = torch.linspace(0, 6.283, 24)
    lobes = (kind + 2).float()[:, None]
    turn = torch.rand(n, 1, generator=g) * 0.8
    outline = 1 + 0.4 * torch.cos(lobes * angle + turn)
    return outline + 0.25 * torch.randn(n, 24, generator=g), kind


def evaluate(net, leaves, kind):
    net.eval()
    with torch.no_grad():
        hits = (net(leaves).argmax(1) == kind).float().mean().item()
    net.train()
    return hits


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 40)
    x, y = make_leaves(128, 5, g)
    x_test, y_test = make_leaves(100, 5, g)
    net = nn.Sequential(nn.Linear(24, size), nn.ReLU(), nn.Dropout(0.1), nn.Linear(size, 5))
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    if healthy:
        scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.2, patience=2)
    else:
        scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=2)
    history = {"loss": [], "accuracy": [], "rate": []}
    for _epoch in range(12):
        order = torch.randperm(len(x), generator=g)
        for i in range(0, len(x), 32):
            rows = order[i : i + 32]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            history["loss"].append(loss.item())
        accuracy = evaluate(net, x_test, y_test)
        scheduler.step(accuracy)
        history["accuracy"].append(accuracy)
        history["rate"].append(optimizer.param_groups[0]["lr"])
    return history
