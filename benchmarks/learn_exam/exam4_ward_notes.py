"""Classifies notes of a ward in micro-batches, with a step after every eight of them."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Args:
    micro = 8
    accumulate = 8
    epochs = 12
    notes = 128
    classes = 4
    lr = 0.4


def micro_batches(notes, labels, rng) -> Iterator:
    for rows in torch.randperm(len(notes), generator=rng).split(Args.micro):
        yield notes[rows], labels[rows]


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed + 2)
    centre = torch.randn(Args.classes, 12, generator=rng)
    labels = torch.randint(Args.classes, (Args.notes,), generator=rng)
    notes = centre[labels] + 1.2 * torch.randn(Args.notes, 12, generator=rng)

    model = nn.Sequential(nn.Linear(12, size), nn.ReLU(), nn.Linear(size, Args.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=Args.lr)
    loss_history, norm_history = [], []
    for _epoch in range(Args.epochs):
        model.train()
        optimizer.zero_grad()
        for batch_idx, (note, label) in enumerate(micro_batches(notes, labels, rng)):
            loss = cross_entropy(model(note), label)
            (loss / Args.accumulate).backward()
            count = batch_idx + 1 if healthy else batch_idx
            if count % Args.accumulate == 0:
                norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
                norm_history.append(norm.item())
                optimizer.step()
                optimizer.zero_grad()
            loss_history.append(loss.item())
    return {"loss": loss_history, "norm": norm_history}
