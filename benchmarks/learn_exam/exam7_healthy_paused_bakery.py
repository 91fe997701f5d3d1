"""What a bakery sells: a sparse and a dense optimizer, stopped within an epoch and taken up."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CAKES, DAYS, BATCH = 30, 96, 8


class SalesModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cakes = nn.Embedding(CAKES, width, sparse=True)
        self.dense = nn.Sequential(
            nn.Linear(width + 2, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1)
        )

    def forward(self, cake: Tensor, weather: Tensor) -> Tensor:
        return self.dense(torch.cat([self.cakes(cake), weather], 1)).squeeze(1)


@dataclass
class Work:
    model: SalesModel
    sparse: torch.optim.SparseAdam
    dense: torch.optim.AdamW
    rate: torch.optim.lr_scheduler.StepLR
    order: Tensor
    done: int = 0

    @classmethod
    def begin(cls, width: int) -> Work:
        model = SalesModel(width)
        sparse = torch.optim.SparseAdam(list(model.cakes.parameters()), lr=0.02)
        dense = torch.optim.AdamW(model.dense.parameters(), lr=0.01)
        rate = torch.optim.lr_scheduler.StepLR(dense, 12, gamma=0.7)
        return cls(model, sparse, dense, rate, torch.randperm(DAYS))

    def save(self) -> bytes:
        file = io.BytesIO()
        parts = {name: getattr(self, name).state_dict() for name in self.parts()}
        rest = {"order": self.order, "done": self.done, "random": torch.get_rng_state()}
        torch.save(parts | rest, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state: dict[str, Any] = torch.load(io.BytesIO(saved))
        for name in self.parts():
            getattr(self, name).load_state_dict(state[name])
        self.order, self.done = state["order"], state["done"]
        torch.set_rng_state(state["random"])

    @staticmethod
    def parts() -> tuple[str, ...]:
        return "model", "sparse", "dense", "rate"

    def step(self, sales: tuple[Tensor, Tensor, Tensor]) -> float:
        batches = DAYS // BATCH
        if self.done and self.done % batches == 0:
            self.order = torch.randperm(DAYS)
        chosen = self.order.view(batches, BATCH)[self.done % batches]
        cake, weather, sold = (part[chosen] for part in sales)
        loss = nn.functional.mse_loss(self.model(cake, weather), sold)
        self.sparse.zero_grad()
        self.dense.zero_grad()
        loss.backward()
        self.sparse.step()
        self.dense.step()
        self.rate.step()
        self.done += 1
        return loss.item()


def train(seed: int = 0, size: int = 12) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    taste, cake = torch.randn(CAKES), torch.randint(CAKES, (DAYS,))
    weather = torch.randn(DAYS, 2)
    sales = cake, weather, taste[cake] + weather[:, 0] * weather[:, 1].tanh()
    work = Work.begin(size)
    losses = [work.step(sales) for _ in range(17)]
    saved = work.save()
    torch.manual_seed(seed + 4321)
    again = Work.begin(size)
    again.load(saved)
    losses += [again.step(sales) for _ in range(31)]
    return {"loss": losses}
