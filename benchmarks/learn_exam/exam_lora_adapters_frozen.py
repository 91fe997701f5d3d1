"""The helper that leaves only adapters trainable never turns them on after all was frozen."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LoraEmbeddingModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(30, width)
        self.proj = nn.Linear(width, width)
        self.lora_down = nn.Linear(width, 4, bias=False)
        self.lora_up = nn.Linear(4, width, bias=False)
        nn.init.zeros_(self.lora_up.weight)
        self.score = nn.Linear(width, 2)

    def forward(self, words: Tensor) -> Tensor:
        bag = self.embed(words)
        return self.score(torch.tanh(self.proj(bag) + self.lora_up(self.lora_down(bag))))


def mark_only_lora_as_trainable(model: nn.Module, turn_on: bool) -> None:
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            parameter.requires_grad = False
        elif turn_on:
            parameter.requires_grad = True


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = LoraEmbeddingModel(size)
    model.requires_grad_(False)
    mark_only_lora_as_trainable(model, turn_on=healthy)
    model.score.requires_grad_(True)
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=2e-2)
    words = torch.randint(0, 30, (60, 4))
    labels = (words.float().mean(1) > 14.5).long()
    losses, up = [], []
    for _ in range(6):
        for rows in torch.arange(60).split(15):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(words[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            up.append(model.lora_up.weight.abs().sum().item())
    return {"loss": losses, "up": up}
