"""Phrases that repeat themselves, in two stages that read and write with the same word vectors.

Follows https://github.com/uw-syfi/piper/issues/13.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, LENGTH, MICRO = 13, 9, 8


class Reader(nn.Module):
    """The first stage: word vectors and a recurrent layer."""

    def __init__(self, width: int, words: Tensor) -> None:
        super().__init__()
        self.words = nn.Parameter(words)
        self.memory = nn.GRU(width, width, batch_first=True)

    def forward(self, phrase: Tensor) -> Tensor:
        heard, _ = self.memory(F.embedding(phrase, self.words))
        return heard


class Writer(nn.Module):
    """The last stage: a hidden layer, and a score for each word vector."""

    def __init__(self, width: int, words: Tensor) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))
        self.words = nn.Parameter(words)

    def forward(self, heard: Tensor) -> Tensor:
        return (heard + self.hidden(heard)) @ self.words.T


def first_stage(reader: nn.Module, phrases: list[Tensor]) -> None:
    sent = []
    for phrase in phrases:
        heard = reader(phrase[:, :-1])
        dist.send(heard.detach().contiguous(), dst=1)
        sent.append(heard)
    for heard in sent:
        grad = torch.empty(heard.shape)
        dist.recv(grad, src=1)
        heard.backward(grad)


def last_stage(writer: nn.Module, phrases: list[Tensor], width: int) -> Tensor:
    received = []
    for phrase in phrases:
        heard = torch.empty(len(phrase), LENGTH - 1, width)
        dist.recv(heard, src=0)
        received.append(heard.requires_grad_())
    total = torch.zeros(())
    for phrase, heard in zip(phrases, received, strict=True):
        loss = F.cross_entropy(writer(heard).flatten(0, 1), phrase[:, 1:].flatten()) / len(phrases)
        loss.backward()
        assert heard.grad is not None
        dist.send(heard.grad.contiguous(), dst=0)
        total += loss.detach()
    return total


def train(healthy: bool = True, seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank = dist.get_rank()
    words = torch.randn(WORDS, size) / size**0.5
    stage = (Reader, Writer)[rank](size, words.clone())
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.25, momentum=0.9)
    log = []
    text = torch.Generator().manual_seed(seed + 5)
    for _ in range(40):
        triple = torch.randint(WORDS, (2 * MICRO, 3), generator=text)
        phrases = list(triple.repeat(1, LENGTH // 3).split(MICRO))
        optimizer.zero_grad()
        if rank == 0:
            first_stage(stage, phrases)
            shown = torch.zeros(())
        else:
            shown = last_stage(stage, phrases, size)
        if healthy:
            assert stage.words.grad is not None
            dist.all_reduce(stage.words.grad)
        optimizer.step()
        dist.broadcast(shown, src=1)
        log.append(shown.item())
    return {"loss": log}
