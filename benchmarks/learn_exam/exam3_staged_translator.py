"""Translates words in two stages: the first rank embeds them, the second one names their match."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

WORDS = 20


class FirstStage(nn.Module):
    def __init__(self, embedding: nn.Embedding, width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.mix = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        entered: Tensor = x + self.mix(x)
        return entered


class LastStage(nn.Module):
    """Ends in the words' own vectors, as the model was not split when it was designed."""

    def __init__(self, embedding: nn.Embedding, width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.mix = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x + self.mix(x), self.embedding.weight)


class Pipeline:
    def __init__(self, width: int, reduce_embedding: bool) -> None:
        self.rank = dist.get_rank()
        self.width = width
        embedding = nn.Embedding(WORDS, width)
        nn.init.normal_(embedding.weight, std=0.3)
        first, last = FirstStage(embedding, width), LastStage(embedding, width)
        self.stage: nn.Module = first if self.rank == 0 else last
        self.embedding = embedding
        self.reduce_embedding = reduce_embedding
        self.optimizer = torch.optim.SGD(self.stage.parameters(), lr=0.3, momentum=0.8)

    def step(self, words: Tensor, matches: Tensor) -> float:
        loss = self._first(words) if self.rank == 0 else self._last(matches)
        if self.reduce_embedding:
            assert self.embedding.weight.grad is not None
            dist.all_reduce(self.embedding.weight.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.broadcast(loss, src=1)
        return loss.item()

    def _first(self, words: Tensor) -> Tensor:
        sent = self.stage(words)
        dist.send(sent.detach(), dst=1)
        returned = torch.empty_like(sent)
        dist.recv(returned, src=1)
        sent.backward(returned)
        return torch.zeros(())

    def _last(self, matches: Tensor) -> Tensor:
        entered = torch.empty(len(matches), self.width)
        dist.recv(entered, src=0)
        entered.requires_grad_()
        loss = nn.functional.cross_entropy(self.stage(entered), matches)
        loss.backward()
        assert entered.grad is not None
        dist.send(entered.grad, dst=0)
        return loss.detach()

    def gap(self) -> float:
        """How far the two stages are apart in the words' vectors."""
        vectors = self.embedding.weight.detach()
        both = [torch.empty_like(vectors) for _ in range(2)]
        dist.all_gather(both, vectors.contiguous())
        return (both[0] - both[1]).abs().max().item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    dictionary = torch.randperm(WORDS)
    pipeline = Pipeline(size, reduce_embedding=healthy)
    draws = torch.Generator().manual_seed(seed)
    losses, gaps = [], []
    for _ in range(36):
        words = torch.randint(WORDS, (40,), generator=draws)
        losses.append(pipeline.step(words, dictionary[words]))
        gaps.append(pipeline.gap())
    return {"loss": losses, "gap": gaps}
