"""Mixed precision with a loss scale and warm restarts; everything is saved, and the run goes on."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor, nn


class Session:
    def __init__(self, width: int) -> None:
        self.model = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 2)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
            self.optimizer, T_0=10, T_mult=2, eta_min=1e-3
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=9)
        self.at = 0

    def state(self) -> dict[str, Any]:
        parts = {k: v.state_dict() for k, v in vars(self).items() if hasattr(v, "state_dict")}
        return parts | {"at": self.at, "rng": torch.get_rng_state()}

    def restore(self, state: dict[str, Any]) -> None:
        for name in ("model", "optimizer", "scheduler", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.at = state["at"]
        torch.set_rng_state(state["rng"])

    def steps(self, x: Tensor, y: Tensor, until: int) -> list[float]:
        losses = []
        while self.at < until:
            rows = torch.randint(0, len(x), (24,))
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(self.model(x[rows]).float(), y[rows])
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.at += 1
            losses.append(loss.item())
        return losses


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(200, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    session = Session(size)
    losses = session.steps(x, y, until=25)
    file = io.BytesIO()
    torch.save(session.state(), file)
    file.seek(0)
    session = Session(size)
    session.restore(torch.load(file, weights_only=True))
    return {"loss": losses + session.steps(x, y, until=60)}
