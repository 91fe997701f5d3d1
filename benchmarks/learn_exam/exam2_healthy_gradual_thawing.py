"""A pretrained stack that is thawed from the top, with callbacks and a rate for each layer."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class Callback:
    def on_epoch_start(self, runner: Runner, epoch: int) -> None:
        pass

    def on_step_end(self, runner: Runner, loss: float) -> None:
        pass


class Runner:
    def __init__(self, width: int, callbacks: list[Callback]) -> None:
        sizes = [8, width, width]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU())
            for a, b in itertools.pairwise(sizes)
        )
        self.layers.requires_grad_(False)
        self.head = nn.Linear(width, 3)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=2e-2)
        self.callbacks = callbacks

    def score(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(x)
        return scores

    def fit(self, epochs: int, steps: int) -> None:
        for epoch in range(epochs):
            for callback in self.callbacks:
                callback.on_epoch_start(self, epoch)
            for _ in range(steps):
                x = torch.randn(32, 8)
                answers = (x[:, 0] + x[:, 1] * x[:, 2]).sign().long() + 1
                loss = nn.functional.cross_entropy(self.score(x), answers)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                for callback in self.callbacks:
                    callback.on_step_end(self, loss.item())


class Thaw(Callback):
    def on_epoch_start(self, runner: Runner, epoch: int) -> None:
        if 1 <= epoch <= len(runner.layers):
            layer = runner.layers[-epoch].requires_grad_(True)
            parameters = list(layer.parameters())
            runner.optimizer.add_param_group({"params": parameters, "lr": 2e-2 * 0.7**epoch})


class Record(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step_end(self, runner: Runner, loss: float) -> None:
        self.losses.append(loss)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    record = Record()
    Runner(size, [Thaw(), record]).fit(epochs=4, steps=7)
    return {"loss": record.losses}
