"""Matches pictures with captions by a hinge on the hardest negative, and validates now and then."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Matcher:
    def __init__(self, width: int) -> None:
        self.img_enc = nn.Sequential(nn.Dropout(0.1), nn.Linear(10, width), nn.Tanh())
        self.txt_enc = nn.Sequential(
            nn.Linear(7, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, width)
        )
        self.params = [*self.img_enc.parameters(), *self.txt_enc.parameters()]
        self.optimizer = torch.optim.Adam(self.params, lr=1e-2)

    def train_start(self) -> None:
        self.img_enc.train()
        self.txt_enc.train()

    def val_start(self) -> None:
        self.img_enc.eval()
        self.txt_enc.eval()

    def scores(self, images: Tensor, words: Tensor) -> Tensor:
        i = F.normalize(self.img_enc(images), dim=-1)
        t = F.normalize(self.txt_enc(words), dim=-1)
        return i @ t.t()

    def update(self, images: Tensor, words: Tensor) -> float:
        scores = self.scores(images, words)
        right = scores.diag().view(-1, 1)
        eye = torch.eye(len(scores), dtype=torch.bool)
        over = (0.2 + scores - right).clamp(min=0).masked_fill(eye, 0)
        under = (0.2 + scores - right.t()).clamp(min=0).masked_fill(eye, 0)
        loss = over.mean(1).mean() + under.mean(0).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, 2.0)
        self.optimizer.step()
        return loss.item()


@torch.no_grad()
def recall(matcher: Matcher, images: Tensor, words: Tensor) -> float:
    matcher.val_start()
    ranks = matcher.scores(images, words).argmax(1)
    return (ranks == torch.arange(len(ranks))).float().mean().item()


def train(healthy: bool = True, seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    hidden = torch.randn(160, 4)
    images = torch.tanh(hidden @ torch.randn(4, 10))
    words = torch.tanh(hidden @ torch.randn(4, 7))
    matcher = Matcher(size)
    log: dict[str, list[float]] = {"loss": [], "recall": []}
    for _ in range(3):
        matcher.train_start()
        for at, chosen in enumerate(torch.randperm(128).split(8)):
            log["loss"].append(matcher.update(images[chosen], words[chosen]))
            if at % 5 == 4:
                log["recall"].append(recall(matcher, images[128:], words[128:]))
                if healthy:
                    matcher.train_start()
                else:
                    matcher.img_enc.train()
    return log
