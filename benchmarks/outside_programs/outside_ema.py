"""A small denoiser with an exponential average of its weights.

The idea is that of the EDM line of diffusion models (Karras et al.): the decay of the average follows
from a half-life in images, so it depends on the number of images of a step.  The first rank keeps
the average and sends it to the others, which generate samples with it.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import Context, divides, requires

PIXELS, WIDTH, BATCH, HALF_LIFE = 8, 16, 4, 24.0


class Denoiser(nn.Module):
    """Estimates the clean image from a noisy one and the level of its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(PIXELS, WIDTH)
        self.level = nn.Linear(4, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, PIXELS)

    def forward(self, noisy: Tensor, sigma: Tensor) -> Tensor:
        scaled = noisy / (1 + sigma.square()).sqrt()
        phases = sigma.log() * torch.tensor([0.5, 1.0], device=sigma.device, dtype=sigma.dtype)
        x = self.stem(scaled) + self.level(torch.cat((phases.sin(), phases.cos()), dim=-1))
        x = x + self.down(F.silu(self.up(self.norm(x))))
        skip = 1 / (1 + sigma.square())
        return skip * noisy + sigma * skip.sqrt() * self.head(x)


class WeightAverage:
    """The average of a model's weights, which is the same on all ranks of a group."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, fault: str) -> None:
        self.model, self.group, self.fault = model, group, fault
        self.average = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Average on the first rank, and send the average to the others."""
        pairs = zip(self.average.parameters(), self.model.parameters(), strict=True)
        for average, parameter in pairs:
            if dist.get_rank(self.group) == 0:
                average.lerp_(parameter, 1 - decay)
            if self.fault != "not-broadcast":  # fault: not-broadcast
                dist.broadcast(average, group_src=0, group=self.group)


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Clean images, noise levels and noise of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    images = 0.5 * torch.randn(BATCH, PIXELS, generator=generator)
    sigma = (torch.randn(BATCH, 1, generator=generator) - 0.5).exp()
    noise = torch.randn(BATCH, PIXELS, generator=generator)
    images, sigma, noise = (each.to(ctx.device, ctx.dtype) for each in (images, sigma, noise))
    return images, sigma, noise


@requires(divides("microbatches", "dp"))
def train(ctx: Context, fault: str = "", microbatches: int = 4, steps: int = 2) -> None:
    """Train with AdamW, and keep an average of the weights."""
    net = Denoiser().to(ctx.device, ctx.dtype)
    ctx.initialize({"net": net})
    ema = WeightAverage(net, ctx.group("dp"), fault if ctx.world_size > 1 else "")
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    ctx.watch({"net": net, "ema": ema.average}, optimizer)
    for step in range(steps):
        with ctx.step():
            numbers = ctx.microbatches(microbatches)
            for number in numbers:
                with ctx.microbatch(number):
                    images, sigma, noise = batch(ctx, step, number)
                    estimate = net(images + sigma * noise, sigma)
                    weight = (1 + sigma.square()) / sigma.square()
                    wide = torch.promote_types(ctx.dtype, torch.float32)
                    loss = (weight * (estimate - images).square()).to(wide).mean() / microbatches
                    ctx.loss(loss)
                    loss.backward()
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            images_in_step = BATCH * microbatches
            if fault == "local-half-life" and ctx.world_size > 1:
                images_in_step = BATCH * len(numbers)  # fault: local-half-life
            decay = 0.5 ** (images_in_step / HALF_LIFE)
            if fault == "average-before-step" and ctx.world_size > 1:
                ema.update(decay)  # fault: average-before-step
                optimizer.step()
            else:
                optimizer.step()
                ema.update(decay)
            optimizer.zero_grad()
