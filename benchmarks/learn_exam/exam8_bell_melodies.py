"""Melodies of bells: a recurrent reader on the first rank, the next note on the second.

Follows https://github.com/allenai/OLMo-core/pull/749.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

NOTES, LENGTH, MICRO, MICROS = 12, 9, 8, 3


class Reader(nn.Module):
    """The first stage: from notes to states."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.notes = nn.Embedding(NOTES, width)
        self.memory = nn.GRU(width, width, batch_first=True)

    def forward(self, notes: Tensor) -> Tensor:
        states: Tensor = self.memory(self.notes(notes))[0]
        return states


class Inbox:
    """Places for states of the micro-batches, which are kept from step to step."""

    def __init__(self, width: int, fresh: bool) -> None:
        shape = (MICRO, LENGTH - 1, width)
        self.places = [torch.zeros(shape, requires_grad=True) for _ in range(MICROS)]
        self.fresh = fresh

    def receive(self, at: int) -> Tensor:
        place = self.places[at]
        if self.fresh:
            place.grad = None
        dist.recv(place.detach(), src=0)
        return place

    def send_back(self, at: int) -> None:
        grad = self.places[at].grad
        assert grad is not None
        dist.send(grad, dst=0)


def reader_step(reader: Reader, tunes: Tensor) -> float:
    sent = []
    for tune in tunes.chunk(MICROS):
        states = reader(tune[:, :-1])
        dist.send(states.detach().contiguous(), dst=1)
        sent.append(states)
    for states in sent:
        grad = torch.empty(states.shape)
        dist.recv(grad, src=1)
        states.backward(grad)
    return 0.0


def singer_step(singer: nn.Module, inbox: Inbox, tunes: Tensor) -> float:
    places = [inbox.receive(at) for at in range(MICROS)]
    total = 0.0
    for at, tune in enumerate(tunes.chunk(MICROS)):
        scores = singer(places[at])
        loss = F.cross_entropy(scores.flatten(0, 1), tune[:, 1:].flatten()) / MICROS
        loss.backward()
        inbox.send_back(at)
        total += loss.item()
    return total


def ring(source: torch.Generator, leaps: Tensor) -> Tensor:
    notes = [torch.randint(NOTES, (MICRO * MICROS,), generator=source)]
    for _ in range(LENGTH - 1):
        notes.append((notes[-1] + leaps[notes[-1] % len(leaps)]) % NOTES)
    return torch.stack(notes, 1)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    reader = Reader(size)
    singer = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, NOTES))
    inbox = Inbox(size, fresh=healthy)
    mine = reader if dist.get_rank() == 0 else singer
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.3, momentum=0.8)
    leaps = torch.tensor([1, 5, 2])
    source = torch.Generator().manual_seed(seed)
    curve = []
    for _ in range(40):
        tunes = ring(source, leaps)
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            heard = torch.tensor(reader_step(reader, tunes))
        else:
            heard = torch.tensor(singer_step(singer, inbox, tunes))
        optimizer.step()
        dist.broadcast(heard, src=1)
        curve.append(heard.item())
    return {"loss": curve}
