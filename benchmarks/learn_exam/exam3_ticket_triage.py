"""Sorts support tickets by topic; the end of both readings says where to look again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    words: int = 60
    topics: int = 3
    embedded: int = 12
    hidden: int = 16
    length: int = 9
    batch: int = 24
    steps: int = 36
    transposed: bool = True


class TicketReader(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.words, config.embedded)
        self.lstm = nn.LSTM(config.embedded, config.hidden, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * config.hidden, config.topics)

    def forward(self, tickets: Tensor) -> Tensor:
        outputs, (state, _) = self.lstm(self.embedding(tickets))
        if self.config.transposed:
            state = state.transpose(0, 1).contiguous()
        summary = state.view(len(tickets), -1, 1)
        attention = torch.bmm(outputs, summary).softmax(dim=1)
        context = (outputs * attention).sum(1)
        logits: Tensor = self.classifier(context)
        return logits


def draw(config: Config) -> tuple[Tensor, Tensor]:
    topics = torch.randint(config.topics, (config.batch,))
    tickets = torch.randint(config.words, (config.batch, config.length))
    # Three words of each ticket belong to its topic.
    share = config.words // config.topics
    place = torch.rand(config.batch, config.length).topk(3).indices
    telling = topics[:, None] * share + torch.randint(share, (config.batch, 3))
    return tickets.scatter(1, place, telling), topics


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    config = Config(hidden=size, transposed=healthy)
    model = TicketReader(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(config.steps):
        tickets, topics = draw(config)
        loss = nn.functional.cross_entropy(model(tickets), topics)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
