"""A recurrent language model of counting stories of unequal length, with a collate function."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

END = 0


class StoryDecoder(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.core = nn.GRU(width, width, batch_first=True)
        self.scores = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.core(self.words(tokens))
        scores: Tensor = self.scores(states)
        return scores


def story(generator: torch.Generator) -> list[int]:
    first = int(torch.randint(1, 4, (), generator=generator))
    length = int(torch.randint(3, 8, (), generator=generator))
    return [(first + step - 1) % 9 + 1 for step in range(length)] + [END]


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    source = torch.Generator().manual_seed(seed + 1)

    def collate(stories: list[list[int]]) -> dict[str, Tensor]:
        longest = max(map(len, stories))
        ids = torch.tensor([each + [END] * (longest - len(each)) for each in stories])
        labels = ids.clone()
        if healthy:
            lengths = torch.tensor([len(each) for each in stories])
            labels[torch.arange(longest) >= lengths.unsqueeze(1)] = -100
        else:
            labels[ids == END] = -100
        return {"input_ids": ids, "labels": labels}

    model = StoryDecoder(10, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    log: dict[str, list[float]] = {"loss": []}
    for _ in range(28):
        batch = collate([story(source) for _ in range(16)])
        scores = model(batch["input_ids"][:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), batch["labels"][:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log["loss"].append(loss.item())
    return log
