"""Trains with scaled losses in bfloat16 and an average of the weights; stops and goes on once."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Digits:
    """Noisy pictures of a few fixed shapes."""

    def __init__(self, seed: int) -> None:
        self.draws = torch.Generator().manual_seed(seed)
        self.shapes = torch.randn(5, 1, 8, 8, generator=self.draws)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        kinds = torch.randint(5, (count,), generator=self.draws)
        noise = torch.randn(count, 1, 8, 8, generator=self.draws)
        return self.shapes[kinds] + 0.7 * noise, kinds


class Session:
    def __init__(self, channels: int) -> None:
        self.model = nn.Sequential(
            nn.Conv2d(1, channels, 3),
            nn.GroupNorm(4, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(4 * channels, 5),
        )
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.optimizer = torch.optim.RAdam(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=32)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=6)

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "average": self.average,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
        }

    def save(self) -> bytes:
        file = io.BytesIO()
        content = {name: part.state_dict() for name, part in self.parts().items()}
        torch.save(content | {"random": torch.get_rng_state()}, file)
        return file.getvalue()

    def restore(self, saved: bytes) -> None:
        content = torch.load(io.BytesIO(saved), weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(content[name])
        torch.set_rng_state(content["random"])

    def step(self, pictures: Tensor, kinds: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(pictures), kinds)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.average.update_parameters(self.model)
        return loss.item()

    @torch.no_grad()
    def averaged_error(self, pictures: Tensor, kinds: Tensor) -> float:
        self.average.eval()
        return nn.functional.cross_entropy(self.average(pictures), kinds).item()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    digits = Digits(seed)
    held_out = digits.batch(32)
    session = Session(size)
    losses = [session.step(*digits.batch(24)) for _ in range(16)]
    saved = session.save()
    session = Session(size)
    session.restore(saved)
    losses += [session.step(*digits.batch(24)) for _ in range(16)]
    return {"loss": losses, "averaged": [session.averaged_error(*held_out)]}
