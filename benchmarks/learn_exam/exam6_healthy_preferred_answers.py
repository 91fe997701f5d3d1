"""Prefers the better of two answers, against a frozen reference, over windows of micro-batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Speaker(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.drop(self.rnn(self.embed(ids))[0]))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was)


def log_probability(model: nn.Module, ids: Tensor, answer: Tensor) -> Tensor:
    scores = model(ids[:, :-1]).log_softmax(-1)
    each = scores.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (each * answer[:, 1:]).sum(-1)


def pairs(n: int) -> tuple[Tensor, Tensor, Tensor]:
    prompt = torch.randint(2, 14, (n, 3))
    better = (prompt + 1).clamp(max=13)
    worse = torch.randint(2, 14, (n, 3))
    answer = torch.zeros(n, 6)
    answer[:, 3:] = 1
    return torch.cat([prompt, better], 1), torch.cat([prompt, worse], 1), answer


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    policy = Speaker(14, size)
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    opt = torch.optim.RMSprop(policy.parameters(), lr=3e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda at: min(1.0, (at + 1) / 4))
    held = pairs(48)
    log: dict[str, list[float]] = {"loss": [], "margin": []}
    for step in range(24):
        micro = [pairs(n) for n in (8, 12, 4)]
        count = sum(len(better) for better, _, _ in micro)
        total = 0.0
        for better, worse, answer in micro:
            with torch.no_grad():
                old = log_probability(reference, better, answer)
                old = old - log_probability(reference, worse, answer)
            new = log_probability(policy, better, answer) - log_probability(policy, worse, answer)
            loss = -F.logsigmoid(0.5 * (new - old)).sum() / count
            loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
        warm.step()
        log["loss"].append(total)
        if step % 6 == 5:
            with evaluating(policy):
                gain = log_probability(policy, held[0], held[2])
                gain = gain - log_probability(policy, held[1], held[2])
            log["margin"].append(gain.mean().item())
    return log
