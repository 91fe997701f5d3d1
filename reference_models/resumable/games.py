"""Two losses that work against each other: adversarial training, and a GAN."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.resumable import STEPS
from pytest_trainsafe.reference_models.resumable.training import train

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def adversarial(ctx: Context, steps: int = STEPS, attack_steps: int = 2) -> None:
    """Train a classifier on examples perturbed by `attack_steps` steps of gradient ascent (PGD).

    The perturbation starts from noise, which has its own random generator.
    """
    torch.manual_seed(ctx.seed)
    noise = torch.Generator().manual_seed(ctx.seed + 1)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))
    model = model.to(ctx.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    centres = torch.randn(3, 16, generator=torch.Generator().manual_seed(ctx.seed))

    def attacked(x: Tensor, kinds: Tensor) -> Tensor:
        moved = x + 0.1 * torch.randn(x.shape, generator=noise).to(x)
        for _ in range(attack_steps):
            moved = moved.detach().requires_grad_()
            [gradient] = torch.autograd.grad(F.cross_entropy(model(moved), kinds), [moved])
            moved = x + (moved + 0.1 * gradient.sign() - x).clamp(-0.3, 0.3)
        return moved.detach()

    def step() -> None:
        kinds = torch.randint(3, (12,))
        x = (centres[kinds] + 0.3 * torch.randn(12, 16)).to(ctx.dtype)
        with ctx.microbatch(0):
            loss = F.cross_entropy(model(attacked(x, kinds)), kinds)
            ctx.loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    train(ctx, model, optimizer, step, steps, generators={"noise": noise})


def gan(ctx: Context, steps: int = STEPS, latent: int = 8, channels: int = 4) -> None:
    """Train a GAN to imitate pictures of stripes.  `ctx` watches the generator's optimizer only."""
    torch.manual_seed(ctx.seed)
    generator = nn.Sequential(
        nn.ConvTranspose2d(latent, channels, 4, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.ConvTranspose2d(channels, 1, 4, 2, 1),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(1, channels, 4, 2, 1), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Flatten()
    )
    discriminator.append(nn.Linear(16 * channels, 1))
    model = nn.ModuleDict({"generator": generator, "discriminator": discriminator}).to(ctx.dtype)
    optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    other = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    ones, zeros = torch.ones(6, 1, dtype=ctx.dtype), torch.zeros(6, 1, dtype=ctx.dtype)
    judged = F.binary_cross_entropy_with_logits

    def step() -> None:
        real = 0.1 * torch.randn(6, 1, 8, 8, dtype=ctx.dtype)
        real[:, :, 3:5] += 0.8
        with ctx.microbatch(0):
            fake = generator(torch.randn(6, latent, 1, 1, dtype=ctx.dtype))
            loss = judged(discriminator(real), ones) + judged(discriminator(fake.detach()), zeros)
            other.zero_grad()  # the imitation of the step before has left gradients
            loss.backward()  # type: ignore[no-untyped-call]
            other.step()
            imitation = judged(discriminator(fake), ones)
            ctx.loss(imitation)
            imitation.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    train(ctx, model, optimizer, step, steps, shared={"discriminator": other})
