"""A stateful LSTM language model with truncated backpropagation, clipping and rate annealing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RNNModel(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, num_layers=2)
        self.decoder = nn.Linear(width, words)
        for weight in (self.encoder.weight, self.decoder.weight):
            nn.init.uniform_(weight, -0.1, 0.1)

    def forward(
        self, text: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.rnn(self.drop(self.encoder(text)), state)
        return self.decoder(self.drop(out)), state


def batchify(text: Tensor, columns: int) -> Tensor:
    length = len(text) // columns
    return text[: length * columns].view(columns, length).t().contiguous()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    text = (torch.arange(660) * 3 + torch.arange(660) // 9) % 9
    source, bptt = batchify(text, 10), 8
    model = RNNModel(9, size)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses: list[float] = []
    best = float("inf")
    for _ in range(5):
        state = (torch.zeros(2, 10, size), torch.zeros(2, 10, size))
        epoch = []
        for start in range(0, len(source) - 1, bptt):
            stop = min(start + bptt, len(source) - 1)
            state = (state[0].detach(), state[1].detach())
            model.zero_grad()
            out, state = model(source[start:stop], state)
            loss = nn.functional.cross_entropy(
                out.flatten(0, 1), source[start + 1 : stop + 1].flatten()
            )
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            epoch.append(loss.item())
        mean = sum(epoch) / len(epoch)
        if mean > best:
            for group in optimizer.param_groups:
                group["lr"] /= 4
        best = min(best, mean)
        losses += epoch
    return {"loss": losses}
