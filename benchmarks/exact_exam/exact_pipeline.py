"""A pipeline of two stages with a schedule of its own and tied embeddings.

The stages alternate between forwards and backwards (1F1B).  With recomputation, all forwards come
first (GPipe).

Bugs, by the argument `bug`:

- "last_first": the first stage hands the gradients that it receives to its newest activations
  (pipeline scheduling, wrong micro-batch order; pytorch/pytorch issue 139404).
- "buffer_reused" (with recomputation): all micro-batches are received into one buffer, and the
  backward recomputes from what is in it by then (pipeline scheduling, stale activations;
  deepspeedai/DeepSpeed issue 2800).
- "tied_no_sum": the two copies of the embedding keep their own gradients (communication across
  stages; uw-syfi/piper issue 13, NVIDIA/Megatron-LM issue 844).
- "local_number": a layer's scale follows from its number within the stage (device assignment;
  huggingface/transformers pull request 24381, NVIDIA/Megatron-LM issue 1584).
- "grads_cleared": the first stage clears its gradients when the pipeline drains, so only the last
  micro-batch trains it (pipeline scheduling; NVIDIA-NeMo/Automodel pull request 3530).
- "stage_norm": gradients are clipped by the norm of the stage (communication; pytorch/torchtitan
  issue 596, pull request 649).
- "tied_counted": the norm counts the tied embedding on both stages (doubled communication).
- "targets_shifted": the last stage takes the targets of the micro-batch that the first stage
  computes at that time (pipeline scheduling).
- "skip_dropped": the residual that travels beside the hidden states gets no gradient from the next
  stage (C2, a tensor that dangles in the backward).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe import divides, requires

VOCABULARY, WIDTH, BATCH, LENGTH, LAYERS, LIMIT = 8, 4, 2, 3, 4, 0.1


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.scale = (number + 1) ** -0.5
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.linear(self.norm(x)).tanh()


class Stage(nn.Module):
    """The layers of a stage under their numbers in the whole model."""

    def __init__(self, rank: int, ranks: int, bug: str) -> None:
        super().__init__()
        share = LAYERS // ranks
        self.first, self.last = rank == 0, rank == ranks - 1
        if self.first or self.last:
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            if ranks > 1:
                self.embed.weight.shared_embedding = True
        start = rank * share
        self.layers = nn.ModuleDict(
            {
                str(start + each): Layer(each if bug == "local_number" else start + each)
                for each in range(share)
            }
        )
        if self.last:
            self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, early: Tensor | None) -> tuple[Tensor, Tensor]:
        if early is None:
            x = early = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.last:
            x = F.linear(self.norm(x) + early.tanh(), self.embed.weight)
        return x, early


def _batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(40 * step + index)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Runner:
    """Runs the micro-batches of a step on this rank's stage."""

    def __init__(self, ctx: Any, stage: Stage, count: int, bug: str) -> None:
        self.ctx, self.stage, self.count, self.bug = ctx, stage, count, bug
        self.recompute = bool(ctx.point.get("recompute", False))
        self.group, rank = ctx.group("pp"), ctx.coordinates["pp"]
        self.before = dist.get_global_rank(self.group, rank - 1) if rank else None
        after = rank + 1 < ctx.point.size("pp")
        self.after = dist.get_global_rank(self.group, rank + 1) if after else None
        self.buffer = torch.empty(2, BATCH, LENGTH, WIDTH, device=ctx.device, dtype=ctx.dtype)
        self.waiting: list[Any] = []
        self.sends: list[Any] = []

    def step(self, step: int) -> None:
        numbers = list(self.ctx.microbatches(self.count))
        warmup = self.count if self.recompute else min(self.count, 1 if self.stage.last else 2)
        for index in numbers[:warmup]:
            self.forward(step, index)
        for index in numbers[warmup:]:
            self.backward()
            self.forward(step, index)
        while self.waiting:
            if self.bug == "grads_cleared" and self.stage.first and len(self.waiting) == 1:
                self.stage.zero_grad()
            self.backward()
        for _, work in self.sends:
            work.wait()
        self.sends.clear()

    def send(self, tensor: Tensor, to: int) -> None:
        tensor = tensor.detach().contiguous()
        self.sends.append((tensor, dist.isend(tensor, dst=to, group=self.group)))

    def forward(self, step: int, index: int) -> None:
        with self.ctx.microbatch(index):
            tokens, targets = (each.to(self.ctx.device) for each in _batch(step, index))
            received = None
            if self.before is None:
                x, early = self.stage(tokens, None)
            else:
                buffer = self.buffer
                if self.bug != "buffer_reused":
                    buffer = torch.empty_like(buffer)
                dist.recv(buffer, src=self.before, group=self.group)
                received = buffer.detach().requires_grad_()
                if self.recompute:
                    x, early = checkpoint(self.resume, received, use_reentrant=False)
                else:
                    x, early = self.resume(received)
            if self.after is not None:
                self.send(torch.stack([x, early]), self.after)
            else:
                if self.bug == "targets_shifted":
                    targets = _batch(step, (index + 1) % self.count)[1].to(self.ctx.device)
                x = F.cross_entropy(x.flatten(0, 1), targets.flatten()) / self.count
                self.ctx.loss(x)
        self.waiting.append((index, received, x, early))

    def resume(self, received: Tensor) -> tuple[Tensor, Tensor]:
        x, early = self.stage(received[0], received[1])
        return x, early

    def backward(self) -> None:
        newest = self.bug == "last_first" and self.stage.first
        index, received, x, early = self.waiting.pop(-1 if newest else 0)
        with self.ctx.microbatch(index):
            if self.after is None:
                x.backward()
            else:
                grads = torch.empty(2, *x.shape, device=x.device, dtype=x.dtype)
                dist.recv(grads, src=self.after, group=self.group)
                if self.bug == "skip_dropped":
                    x.backward(grads[0])
                else:
                    torch.autograd.backward([x, early], [grads[0], grads[1]])
            if self.before is not None:
                self.send(received.grad, self.before)


def _clip(ctx: Any, stage: Stage, bug: str) -> None:
    if ctx.world_size == 1:
        ctx.grad_norm(nn.utils.clip_grad_norm_(stage.parameters(), LIMIT))
        return
    square = torch.zeros((), device=ctx.device, dtype=ctx.dtype)
    for name, parameter in stage.named_parameters():
        if "embed" not in name or stage.first or bug == "tied_counted":
            square = square + parameter.grad.square().sum()
    if bug != "stage_norm":
        dist.all_reduce(square, group=ctx.group("pp"))
    norm = square.sqrt()
    ctx.before_clip(norm, LIMIT)
    ctx.grad_norm(norm)
    if norm > LIMIT:
        for parameter in stage.parameters():
            parameter.grad.mul_(LIMIT / (norm + 1e-6))


@requires(divides("count", "dp"))
def train(ctx: Any, count: int = 3, clip: bool = False, bug: str = "") -> None:
    ranks = ctx.point.size("pp")
    stage = Stage(ctx.coordinates["pp"], ranks, bug).to(ctx.device, ctx.dtype)
    ctx.initialize(stage)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.3)
    ctx.watch(stage, optimizer)
    runner = Runner(ctx, stage, count, bug)
    for step in range(2):
        with ctx.step():
            runner.step(step)
            if ranks > 1 and bug != "tied_no_sum":
                dist.all_reduce(stage.embed.weight.grad, group=ctx.group("pp"))
            if clip:
                _clip(ctx, stage, bug)
            optimizer.step()
            optimizer.zero_grad()
