"""A language model with a mixture of experts; each expert is assigned to its own device.

The `Engine` of `toolkit` trains and saves the model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.devices import place
from pytest_trainsafe.reference_models.toolkit.engine import Engine
from pytest_trainsafe.reference_models.toolkit.generation import Generator


class Switch(nn.Module):
    """Sends every token to the expert that the router prefers."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )
        self.devices = [place(each, number) for number, each in enumerate(self.experts)]

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream after the experts."""
        chance, chosen = self.router(x).softmax(dim=-1).max(dim=-1)
        added = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                added[mine] = expert(x[mine]) * chance[mine].unsqueeze(-1)
        return x + added


def train(
    *, seed: int = 0, steps: int = 8, width: int = 16, experts: int = 3, clip: float = 1.0
) -> list[float]:
    """Learn to map each token to its successor in a random permutation."""
    torch.manual_seed(seed)
    successor = torch.randperm(18)
    model = nn.Sequential(nn.Embedding(18, width), Switch(width, experts), nn.Linear(width, 18))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    engine = Engine(model, optimizer, clip=clip)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(18, (32,))
        loss = F.cross_entropy(model(tokens), successor[tokens])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        engine.save(Path(folder) / "last.safetensors")
    generator = Generator(model, window=10)
    for length in (2, 5, 7):
        generator.generate(torch.randint(18, (2, length)), max_new_tokens=length + 1)
    return losses
