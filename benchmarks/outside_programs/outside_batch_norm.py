"""A small convolutional network with batch normalisation that is synchronised over dp.

The idea is that of synchronised batch normalisation as detection and segmentation code uses it: each
dp rank has a slice of every micro-batch, and the statistics are those of the whole micro-batch, in
the forward and in the backward.  For the last step the statistics are frozen, as in fine-tuning.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import Context, divides, requires

CHANNELS, SIZE, CLASSES = 8, 4, 5

ANNOTATIONS = {"loss": {"partial": ["dp"]}, "modules": {"*": {"output": {"dp_dim": 0}}}}


def by_channel(values: Tensor) -> Tensor:
    """A vector over channels, as a factor of images."""
    return values.view(1, -1, 1, 1)


class _Normalize(torch.autograd.Function):
    """Normalises images by the mean and variance of all ranks' images."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        group: dist.ProcessGroup,
        fault: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = dist.get_world_size(group) * x.numel() // x.shape[1]
        mean = wide.sum(dim=(0, 2, 3))
        dist.all_reduce(mean, group=group)
        mean /= count
        centre = mean
        if fault == "mean-of-variances":
            centre = wide.mean(dim=(0, 2, 3))  # fault: mean-of-variances
        variance = (wide - by_channel(centre)).square().sum(dim=(0, 2, 3))
        dist.all_reduce(variance, group=group)
        variance /= count
        inverse = (variance + eps).rsqrt()
        normal = (wide - by_channel(mean)) * by_channel(inverse)
        ctx.save_for_backward(normal, weight, inverse)
        ctx.group, ctx.count, ctx.fault = group, count, fault
        ctx.mark_non_differentiable(mean, variance)
        y = normal * by_channel(weight) + by_channel(bias)
        return y.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        normal, weight, inverse = ctx.saved_tensors
        wide = grad.to(normal.dtype)
        grad_bias = wide.sum(dim=(0, 2, 3))
        grad_weight = (wide * normal).sum(dim=(0, 2, 3))
        sums = torch.stack((grad_bias, grad_weight))
        if ctx.fault != "backward-not-synced":  # fault: backward-not-synced
            dist.all_reduce(sums, group=ctx.group)
        mean, slope = sums / ctx.count
        centred = wide - by_channel(mean) - normal * by_channel(slope)
        grad_x = centred * by_channel(inverse * weight.to(normal.dtype))
        return (
            grad_x.to(grad.dtype),
            grad_weight.to(weight.dtype),
            grad_bias.to(weight.dtype),
            None,
            None,
            None,
        )


class SyncedBatchNorm(nn.Module):
    """Batch normalisation over the images of all ranks of a group."""

    def __init__(self, channels: int, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.group, self.fault = group, fault
        self.momentum, self.eps = 0.1, 1e-5
        self.frozen = False
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.frozen:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        y, mean, variance = _Normalize.apply(
            x, self.weight, self.bias, self.eps, self.group, self.fault
        )
        count = dist.get_world_size(self.group) * x.numel() // x.shape[1]
        with torch.no_grad():
            if self.fault == "running-stats-local":
                variance, mean = torch.var_mean(
                    x, dim=(0, 2, 3), correction=0
                )  # fault: running-stats-local
            unbiased = variance * count / (count - 1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return y


class ConvNet(nn.Module):
    """Two convolutions with batch normalisation, the second in a residual branch."""

    def __init__(self, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False)
        self.norm1 = SyncedBatchNorm(CHANNELS, group, fault)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm2 = SyncedBatchNorm(CHANNELS, group, fault)
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = F.silu(self.norm1(self.conv1(images)))
        x = x + F.silu(self.norm2(self.conv2(x)))
        return self.head(x.mean(dim=(2, 3)))


def batch(ctx: Context, step: int, index: int, size: int) -> tuple[Tensor, Tensor]:
    """A whole micro-batch; the images differ in brightness, so slices differ in their means."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    images = torch.randn(size, 3, SIZE, SIZE, generator=generator)
    images = images + torch.randn(size, 1, 1, 1, generator=generator)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    return images.to(ctx.device, ctx.dtype), labels.to(ctx.device)


@requires(divides("batch_size", "dp"))
def train(
    ctx: Context, fault: str = "", batch_size: int = 6, microbatches: int = 2, steps: int = 3
) -> None:
    """Train with SGD and momentum; each dp rank has a slice of every micro-batch."""
    model = ConvNet(ctx.group("dp"), fault if ctx.world_size > 1 else "")
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    share = batch_size // ctx.point.size("dp")
    mine = slice(ctx.coordinates["dp"] * share, (ctx.coordinates["dp"] + 1) * share)
    for step in range(steps):
        for module in model.modules():
            if isinstance(module, SyncedBatchNorm):
                module.frozen = step == steps - 1
        with ctx.step():
            for number in ctx.microbatches(microbatches, order="split"):
                with ctx.microbatch(number):
                    images, labels = batch(ctx, step, number, batch_size)
                    scores = model(images[mine])
                    wide = torch.promote_types(scores.dtype, torch.float32)
                    total = F.cross_entropy(scores.to(wide), labels[mine], reduction="sum")
                    loss = total / (batch_size * microbatches)
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
