"""Each micro-batch averages over its own tokens, so short ones weigh too much."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IGNORE = -100


def padded_batch(lengths: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """Counting sequences of the given lengths, and their next words, with padding ignored."""
    longest = int(lengths.max())
    starts = torch.randint(0, words, (len(lengths), 1))
    text = (starts + torch.arange(longest + 1)) % words
    labels = text[:, 1:].clone()
    labels[torch.arange(longest) >= lengths[:, None]] = IGNORE
    return text[:, :-1], labels


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    words = 12
    model = nn.Sequential(nn.Embedding(words, size), nn.Tanh(), nn.Linear(size, words))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(16):
        micro = [padded_batch(torch.randint(1, most, (4,)), words) for most in (3, 12)]
        items = sum(int((labels != IGNORE).sum()) for _, labels in micro)
        total = 0.0
        for tokens, labels in micro:
            logits = model(tokens).flatten(0, 1)
            summed = nn.functional.cross_entropy(
                logits, labels.flatten(), ignore_index=IGNORE, reduction="sum"
            )
            if healthy:
                loss = summed / items
            else:
                loss = summed / (labels != IGNORE).sum() / len(micro)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return {"loss": losses, "weight": model.get_parameter("0.weight").detach().flatten().tolist()}
