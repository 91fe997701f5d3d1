"""A token tagger with pre-norm blocks, trained by an engine that builds its own groups."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.expand, self.shrink = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attend(h, h, h, need_weights=False)[0]
        hidden: Tensor = self.shrink(torch.nn.functional.gelu(self.expand(self.norm2(x))))
        return x + hidden


class Tagger(nn.Module):
    def __init__(self, words: int, tags: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.final_norm = nn.LayerNorm(width)
        self.tag = nn.Linear(width, tags)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.tag(self.final_norm(x))
        return scores


class Engine:
    def __init__(self, model: nn.Module, exempt: tuple[str, ...]) -> None:
        self.model = model
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, parameter in model.named_parameters():
            groups[not any(part in name for part in exempt)].append(parameter)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": groups[True], "weight_decay": 0.5},
                {"params": groups[False], "weight_decay": 0.0},
            ],
            lr=1e-2,
        )

    def step(self, words: Tensor, tags: Tensor) -> float:
        loss = nn.functional.cross_entropy(self.model(words).transpose(1, 2), tags)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    exempt = ("bias", "norm") if healthy else ("bias", "LayerNorm.weight")
    engine = Engine(Tagger(12, 3, size), exempt)
    losses = []
    for _ in range(26):
        words = torch.randint(0, 12, (16, 6))
        typical = words.float().mean(1, keepdim=True)
        tags = (words > typical).long() + 2 * (words == 0)
        losses.append(engine.step(words, tags))
    return {"loss": losses}
