"""A pilot keeps a buoy near its mooring; trips end when it breaks loose or when the watch is over.

Follows https://github.com/anthonytorlucci/rlevo/issues/170.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WATCH, DISCOUNT = 10, 0.9


class Buoy:
    """It drifts; a push to either side counters the drift."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.reset()

    def reset(self) -> Tensor:
        self.place, self.speed, self.time = self.draw.uniform(-0.5, 0.5), 0.0, 0
        return self.look()

    def look(self) -> Tensor:
        return torch.tensor([self.place, self.speed])

    def push(self, side: int) -> tuple[float, bool, bool]:
        self.speed = 0.8 * self.speed + 0.15 * (2 * side - 1) + self.draw.gauss(0, 0.05)
        self.place += self.speed
        self.time += 1
        loose = abs(self.place) > 1.5
        return 1 - self.place**2 / 4, loose, self.time == WATCH and not loose


@dataclass
class Trip:
    seen: list[Tensor] = field(default_factory=list)
    sides: list[int] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    last: Tensor | None = None
    loose: bool = False


class Pilot(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, width), nn.Tanh())
        self.sides, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(seen)
        return self.sides(x), self.value(x).squeeze(-1)


def sail(pilot: Pilot, buoy: Buoy) -> Trip:
    trip, seen, over = Trip(), buoy.reset(), False
    while not over:
        with torch.no_grad():
            chance = pilot(seen)[0].softmax(0)[1].item()
        side = int(buoy.draw.random() < chance)
        gain, trip.loose, late = buoy.push(side)
        trip.seen.append(seen)
        trip.sides.append(side)
        trip.gains.append(gain)
        seen, over = buoy.look(), trip.loose or late
    trip.last = seen
    return trip


def returns(trip: Trip, pilot: Pilot, goes_on: bool) -> list[float]:
    ahead = 0.0
    if goes_on and not trip.loose:
        with torch.no_grad():
            ahead = pilot(trip.last)[1].item()
    found = []
    for gain in reversed(trip.gains):
        ahead = gain + DISCOUNT * ahead
        found.append(ahead)
    return found[::-1]


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    buoy, pilot = Buoy(random.Random(seed)), Pilot(2 * size)
    optimizer = torch.optim.Adam(pilot.parameters(), lr=0.02)
    curve = []
    for _ in range(40):
        trips = [sail(pilot, buoy) for _ in range(4)]
        wanted = torch.tensor([each for trip in trips for each in returns(trip, pilot, healthy)])
        seen = torch.stack([each for trip in trips for each in trip.seen])
        sides = torch.tensor([each for trip in trips for each in trip.sides])
        scores, value = pilot(seen)
        critic = F.smooth_l1_loss(value, wanted)
        actor = (
            F.cross_entropy(scores, sides, reduction="none") * (wanted - value).detach()
        ).mean()
        optimizer.zero_grad()
        (critic + 0.1 * actor).backward()
        optimizer.step()
        curve.append(critic.item())
    return {"loss": curve}
