"""An encoder and decoder with RMS norms and a shared embedding learn to reverse."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.relative = nn.Embedding(32, 1)

    def forward(self, x: Tensor, memory: Tensor, causal: bool) -> Tensor:
        scores = self.q(x) @ self.k(memory).transpose(1, 2) / x.shape[-1] ** 0.5
        distance = torch.arange(memory.shape[1]) - torch.arange(x.shape[1])[:, None]
        scores = scores + self.relative(distance.clamp(-16, 15) + 16).squeeze(-1)
        if causal:
            scores = scores.masked_fill(distance > 0, float("-inf"))
        return self.o(scores.softmax(-1) @ self.v(memory))


class Layer(nn.Module):
    def __init__(self, width: int, decoder: bool) -> None:
        super().__init__()
        self.attend = Attention(width)
        self.cross = Attention(width) if decoder else None
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        h = self.norms[0](x)
        x = x + self.attend(h, h, causal=self.cross is not None)
        if self.cross is not None:
            assert memory is not None
            x = x + self.cross(self.norms[1](x), memory, causal=False)
        h = self.norms[2](x)
        return x + self.down(nn.functional.gelu(self.gate(h)) * self.up(h))


class T5(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.shared = nn.Embedding(words, width)
        self.encoder, self.decoder = Layer(width, False), Layer(width, True)
        self.final = nn.RMSNorm(width)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.shared(source))
        out = self.final(self.decoder(self.shared(target), memory))
        return out @ self.shared.weight.t() / out.shape[-1] ** 0.5


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = T5(11, size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        source = torch.randint(1, 11, (16, 5))
        wanted = source.flip(1)
        given = torch.cat([torch.zeros(16, 1, dtype=torch.long), wanted[:, :-1]], 1)
        scores = model(source, given)
        loss = nn.functional.cross_entropy(scores.transpose(1, 2), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
