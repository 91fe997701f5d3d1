"""The list of tied weights is empty, so the head keeps a weight of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Backbone(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(words, width)
        self.mixer = nn.Conv1d(width, width, 3, groups=width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embeddings(tokens)
        padded = nn.functional.pad(hidden.transpose(1, 2), (2, 0))
        return self.norm(hidden + torch.nn.functional.silu(self.mixer(padded)).transpose(1, 2))


class CausalLM(nn.Module):
    def __init__(self, words: int, width: int, tied: dict[str, str]) -> None:
        super().__init__()
        self.backbone = Backbone(words, width)
        self.lm_head = nn.Linear(width, words, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.02)
        nn.init.normal_(self.backbone.embeddings.weight, std=0.02)
        for target, source in tied.items():
            owner, _, name = target.rpartition(".")
            setattr(self.get_submodule(owner), name, self.get_parameter(source))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.backbone(tokens))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    tied = {"lm_head.weight": "backbone.embeddings.weight"} if healthy else {}
    model = CausalLM(20, size, tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = (torch.arange(9) * 3 + torch.randint(0, 20, (48, 1))) % 20
    losses, gaps = [], []
    for step in range(18):
        rows = torch.arange(step * 12, step * 12 + 12) % 48
        scores = model(text[rows, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[rows, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        gaps.append((model.lm_head.weight - model.backbone.embeddings.weight).abs().max().item())
    return {"loss": losses, "gap": gaps}
