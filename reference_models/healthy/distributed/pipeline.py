"""A pipeline of two stages that send activations and gradients, and skip steps together.

Both stages skip a step if the gradient of one of them is not finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 4, microbatches: int = 2, width: int = 12, lr: float = 0.05
) -> Outcome:
    """Run all forwards of a step, then all backwards; only the last stage returns losses."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(ctx.seed)
    group, first = ctx.group("pp"), ctx.rank == 0
    stages = [
        nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width)),
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4)),
    ]
    stage = stages[ctx.rank]
    optimizer = torch.optim.SGD(stage.parameters(), lr=lr, momentum=0.9)
    ctx.watch({f"stages.{ctx.rank}": stage}, optimizer, level="step")
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            inputs = torch.randn(microbatches, 16, 10)
            labels = inputs[..., :4].argmax(dim=-1)
            held = []
            for number in range(microbatches):
                if first:
                    output = stage(inputs[number])
                    dist.send(output.detach(), 1, group=group)
                    held.append((output, output))
                else:
                    received = torch.empty(16, width)
                    dist.recv(received, 0, group=group)
                    received.requires_grad_()
                    loss = F.cross_entropy(stage(received), labels[number]) / microbatches
                    held.append((received, loss))
            for entered, left in held:
                if first:
                    gradient = torch.empty(16, width)
                    dist.recv(gradient, 1, group=group)
                    left.backward(gradient)
                else:
                    left.backward()
                    dist.send(entered.grad, 0, group=group)
            finite = all(
                bool(each.grad.isfinite().all())
                for each in stage.parameters()
                if each.grad is not None
            )
            overflow = torch.tensor(float(not finite))
            dist.all_reduce(overflow, op=dist.ReduceOp.MAX, group=group)
            if not overflow:
                optimizer.step()
            optimizer.zero_grad()
            if not first:
                outcome.losses.append(sum(float(loss.detach()) for _, loss in held))
    return outcome
