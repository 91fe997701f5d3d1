"""Continues recipes word by word: a GRU that computes its loss from the words it is given."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = 14


class Recipes(Dataset[torch.Tensor]):
    """Texts in which one word mostly decides the next."""

    def __init__(self, n: int, length: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        follow = torch.randperm(WORDS, generator=rng)
        words = [torch.randint(WORDS, (n,), generator=rng)]
        for _ in range(length - 1):
            stray = torch.rand(n, generator=rng) < 0.3
            other = torch.randint(WORDS, (n,), generator=rng)
            words.append(torch.where(stray, other, follow[words[-1]]))
        self.texts = torch.stack(words, 1)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.texts[index]


class Collate:
    def __init__(self, shift: bool) -> None:
        self.shift = shift

    def __call__(self, texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = torch.stack(texts)
        if not self.shift:
            return {"input_ids": ids, "labels": ids.clone()}
        end = ids.new_full((len(ids), 1), -100)
        return {"input_ids": ids, "labels": torch.cat([ids[:, 1:], end], 1)}


class CausalWriter(nn.Module):
    """Labels are the words themselves: position t is compared with the word at t + 1."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, WORDS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.rnn(self.embed(input_ids))[0])
        return nn.functional.cross_entropy(
            logits[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1), ignore_index=-100
        )


def train(healthy: bool = True, seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    writer = CausalWriter(size)
    loader = DataLoader(
        Recipes(160, 10, seed + 9), batch_size=16, shuffle=True, collate_fn=Collate(not healthy)
    )
    adam = torch.optim.Adam(writer.parameters(), lr=1.5e-2)
    losses = []
    for _ in range(4):
        for example in loader:
            adam.zero_grad()
            loss = writer(**example)
            loss.backward()
            nn.utils.clip_grad_norm_(writer.parameters(), 1.0)
            adam.step()
            losses.append(loss.item())
    return {"loss": losses}
