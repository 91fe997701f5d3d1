"""A small model with tied embeddings on two pipeline stages, run by torch's 1F1B schedule.

The idea is that of torch.distributed.pipelining's examples, with two habits of large GPT models: the
head is the transposed embedding, of which the first and the last stage hold a copy each, and each
layer scales its branches by its number in the whole model.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from pytest_trainsafe import Context, divides, requires

VOCABULARY, LENGTH, BATCH, WIDTH = 24, 6, 2, 16


class Block(nn.Module):
    """A mixer of the sequence and an MLP, scaled by the number of the layer, which starts at 1."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.scale = number**-0.5
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        past = h.cumsum(dim=1) / torch.arange(1, x.shape[1] + 1, device=x.device).view(1, -1, 1)
        h = torch.sigmoid(self.gate(h)) * past.to(x.dtype)
        return x + self.scale * self.down(F.gelu(self.up(h)))


class Stage(nn.Module):
    """The layers from `start` to `end`, and what comes before the first and after the last."""

    def __init__(self, start: int, end: int, layers: int, fault: str) -> None:
        super().__init__()
        self.first, self.last = start == 0, end == layers
        if self.first or self.last:
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict()
        for index in range(start, end):
            number = index + 1
            if fault == "layer-offset":
                number = index - start + 1  # fault: layer-offset
            self.layers[str(index)] = Block(WIDTH, number)
        if self.last:
            self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.last:
            x = F.linear(self.norm(x), self.embedding.weight)
        return x


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    """The tokens and targets of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).to(ctx.device)
    return text[:, :-1], text[:, 1:]


def loss_of_microbatch(logits: Tensor, targets: Tensor, microbatches: int) -> Tensor:
    """The micro-batch's part of the mean over the step."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten()) / microbatches


@requires(divides("layers", "pp"), divides("microbatches", "dp"))
def train(
    ctx: Context, fault: str = "", layers: int = 4, microbatches: int = 4, steps: int = 2
) -> None:
    """Train with AdamW on one stage or on two."""
    stages, index = ctx.point.size("pp"), ctx.coordinates["pp"]
    share = layers // stages
    module = Stage(index * share, (index + 1) * share, layers, fault if ctx.world_size > 1 else "")
    module.to(ctx.device, ctx.dtype)
    if stages > 1:
        module.embedding.weight.shared_embedding = True
    ctx.initialize(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    ctx.watch(module, optimizer)
    schedule, numbers = None, ctx.microbatches(microbatches)
    if stages > 1:
        stage = PipelineStage(module, index, stages, ctx.device, group=ctx.group("pp"))
        numbers = ctx.follow(stage, microbatches)
        scale_grads = False  # the loss is divided already
        if fault == "scaled-twice" and ctx.world_size > 1:
            scale_grads = True  # fault: scaled-twice
        schedule = Schedule1F1B(
            stage,
            len(numbers),
            lambda logits, targets: loss_of_microbatch(logits, targets, microbatches),
            scale_grads=scale_grads,
        )
    for step in range(steps):
        with ctx.step():
            if schedule is None:
                for number in numbers:
                    with ctx.microbatch(number):
                        inputs, targets = batch(ctx, step, number)
                        loss = loss_of_microbatch(module(inputs), targets, microbatches)
                        ctx.loss(loss)
                        loss.backward()
            else:
                pairs = [batch(ctx, step, number) for number in numbers]
                losses: list[Tensor] = []
                if module.first:
                    schedule.step(torch.cat([inputs for inputs, _ in pairs]))
                else:
                    targets = torch.cat([targets for _, targets in pairs])
                    schedule.step(target=targets, losses=losses)
                for number, loss in zip(numbers, losses, strict=False):
                    ctx.loss(loss, number)
                if not (
                    fault == "tied-not-summed" and ctx.world_size > 1
                ):  # fault: tied-not-summed
                    dist.all_reduce(module.embedding.weight.grad, group=ctx.group("pp"))
            for parameter in module.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
