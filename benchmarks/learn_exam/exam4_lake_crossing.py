"""Values of moves on a frozen lake, learnt from walks that were recorded before."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

SIDE = 4
GOAL, HOLES = 15, (5, 7, 11, 12)
OPEN = [cell for cell in range(SIDE * SIDE) if cell not in (GOAL, *HOLES)]
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
DISCOUNT = 0.9


class Walks(NamedTuple):
    cell: Tensor
    move: Tensor
    reward: Tensor
    arrival: Tensor
    over: Tensor


def slide(cell: int, move: int) -> tuple[float, int, bool]:
    row, column = divmod(cell, SIDE)
    row = min(max(row + MOVES[move][0], 0), SIDE - 1)
    column = min(max(column + MOVES[move][1], 0), SIDE - 1)
    arrival = row * SIDE + column
    return (1.0 if arrival == GOAL else 0.0), arrival, arrival == GOAL or arrival in HOLES


def record(steps: int, generator: torch.Generator) -> Walks:
    rows, cell = [], 0
    for _ in range(steps):
        move = int(torch.randint(4, (), generator=generator))
        reward, arrival, over = slide(cell, move)
        rows.append((cell, move, reward, arrival, float(over)))
        shore = OPEN[int(torch.randint(len(OPEN), (), generator=generator))]
        cell = shore if over else arrival
    cells, moves, rewards, arrivals, overs = zip(*rows, strict=True)
    return Walks(
        torch.tensor(cells), torch.tensor(moves), torch.tensor(rewards),
        torch.tensor(arrivals), torch.tensor(overs),
    )  # fmt: skip


def true_values() -> Tensor:
    values = torch.zeros(SIDE * SIDE, 4)
    for _ in range(60):
        for cell in OPEN:
            for move in range(4):
                reward, arrival, over = slide(cell, move)
                rest = 0.0 if over else values[arrival].max().item()
                values[cell, move] = reward + DISCOUNT * rest
    return values


class Learner:
    def __init__(self, width: int, ends: bool) -> None:
        self.online = nn.Sequential(
            nn.Embedding(SIDE * SIDE, width), nn.ReLU(), nn.Linear(width, 4)
        )
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=2e-2)
        self.ends = ends

    def update(self, walks: Walks, rows: Tensor) -> float:
        cell, move, reward, arrival, over = (column[rows] for column in walks)
        with torch.no_grad():
            future = DISCOUNT * self.target(arrival).amax(1)
            wanted = reward + (future * (1 - over) if self.ends else future)
        value = self.online(cell).gather(1, move[:, None]).squeeze(1)
        loss = nn.functional.mse_loss(value, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 300)
    walks = record(600, generator)
    truth, seen = true_values(), walks.cell.unique()
    learner = Learner(size, ends=healthy)
    history: dict[str, list[float]] = {"loss": [], "error": []}
    for step in range(160):
        rows = torch.randint(600, (64,), generator=generator)
        history["loss"].append(learner.update(walks, rows))
        if step % 8 == 7:
            learner.target.load_state_dict(learner.online.state_dict())
        with torch.no_grad():
            gap = (learner.online(seen).amax(1) - truth[seen].amax(1)).abs().mean()
        history["error"].append(gap.item())
    return history
