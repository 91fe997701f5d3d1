"""Two ranks train a sampler of sketches from noise, stop, and go on from a saved checkpoint.

Follows https://github.com/radixark/miles/pull/3187.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Denoiser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width))
        self.net.extend([nn.SiLU(), nn.Linear(width, 2)])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(torch.cat([x, t], dim=-1))


class Run:
    """A model, its optimizer, and the steps that are done."""

    def __init__(self, width: int, points: Tensor) -> None:
        self.model = Denoiser(width)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.points = points
        self.losses: list[float] = []

    def step(self) -> None:
        rows = torch.randint(len(self.points), (48,))
        clean, t = self.points[rows], torch.rand(48, 1)
        noise = torch.randn_like(clean)
        guess = self.model((1 - t) * clean + t * noise, t)
        loss = nn.functional.mse_loss(guess, noise - clean)
        self.optimizer.zero_grad()
        loss.backward()
        self.average_gradients()
        self.optimizer.step()
        self.losses.append(loss.item())

    def average_gradients(self) -> None:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view_as(grad))

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def save(run: Run, folder: Path) -> None:
    if dist.get_rank() == 0:
        torch.save(run.state(), folder / "state.pt")
    torch.save(torch.get_rng_state(), folder / f"rng_{dist.get_rank()}.pt")
    dist.barrier()


def load(run: Run, folder: Path, rng_of: int) -> None:
    run.load(torch.load(folder / "state.pt"))
    torch.set_rng_state(torch.load(folder / f"rng_{rng_of}.pt"))


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    angle = 6.28 * torch.rand(256)
    points = torch.stack([angle.cos(), 0.5 * (2 * angle).sin()], dim=-1)
    run = Run(size, points)
    torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
    shared = [tempfile.mkdtemp()]
    dist.broadcast_object_list(shared, src=0)
    folder = Path(shared[0])
    for _ in range(14):
        run.step()
    save(run, folder)

    later = Run(size, points)
    load(later, folder, rng_of=dist.get_rank() if healthy else 0)
    dist.barrier()
    shutil.rmtree(folder, ignore_errors=True)
    for _ in range(16):
        later.step()
    return {"loss": run.losses + later.losses}
