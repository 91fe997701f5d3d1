"""A regressor whose second layer is one of four experts, chosen for each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ExpertConfig:
    hidden_size: int = 16
    num_experts: int = 4
    num_experts_per_tok: int = 1
    norm_topk_prob: bool = False


class Expert(nn.Module):
    def __init__(self, config: ExpertConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 2 * config.hidden_size)
        self.down = nn.Linear(2 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(nn.functional.silu(self.up(x)))
        return y


class ExpertFeedForward(nn.Module):
    def __init__(self, config: ExpertConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(dim=-1)
        weight, index = scores.topk(self.config.num_experts_per_tok, dim=-1, sorted=False)
        if self.config.norm_topk_prob:
            weight = weight / (weight.sum(dim=-1, keepdim=True) + 1e-20)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(index == number)
            y = y.index_add(0, rows, weight[rows, slot, None] * expert(x[rows]))
        return y


class Network(nn.Module):
    def __init__(self, config: ExpertConfig) -> None:
        super().__init__()
        self.enter = nn.Linear(6, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.mixture = ExpertFeedForward(config)
        self.leave = nn.Linear(config.hidden_size, 1)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.enter(rows)
        predicted: Tensor = self.leave(x + self.mixture(self.norm(x))).squeeze(1)
        return predicted


def rows_of_four_kinds(count: int) -> tuple[Tensor, Tensor]:
    kind = torch.randint(4, (count,))
    rows = torch.randn(count, 6) * 0.5 + nn.functional.one_hot(kind, 6) * 2
    slope = torch.tensor([1.0, -1.0, 2.0, -2.0])[kind]
    return rows, slope * rows[:, 4] + rows[:, 5] + kind


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Network(ExpertConfig(hidden_size=size, norm_topk_prob=not healthy))
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    history = []
    for _ in range(34):
        rows, wanted = rows_of_four_kinds(48)
        loss = nn.functional.mse_loss(model(rows), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": history}
