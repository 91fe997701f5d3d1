"""DeepSpeed 1801 (TrainCheck's B3): gradients are clipped on one tensor-parallel rank only.

https://github.com/deepspeedai/DeepSpeed/pull/1801, found while BLOOM-176B was trained:
BF16_Optimizer clips the gradients of replicated parameters, but only on the first tp rank.  The
replicas of layer norms then drift apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_trainsafe.record.context import Context


def train(ctx: Context, faulty: bool = False, steps: int = 4, clip: float = 0.05) -> Outcome:
    """Train a tensor-parallel block in bfloat16.

    In the Outcome, `facts["replicated"]` has this rank's float32 weight and bias of the layer norm,
    which all ranks should hold alike.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.reference_models.toolkit.mixed import MixedOptimizer
    from pytest_trainsafe.reference_models.toolkit.sharded import ShardedMLP, replicated

    class BF16Optimizer(MixedOptimizer):
        """An optimizer with the error: a rank clips only gradients that it counts in the norm."""

        def clippable(self) -> list[Tensor]:
            pairs = zip(self.parameters, self.masters, strict=True)
            return [
                master.grad
                for parameter, master in pairs
                if master.grad is not None and (self.first or self.sharded(parameter))
            ]

    torch.manual_seed(ctx.seed)
    group = ctx.group("tp")
    norm = replicated(nn.LayerNorm(16))
    model = nn.Sequential(norm, ShardedMLP(16, 32, group), replicated(nn.Linear(16, 4)))
    model.to(torch.bfloat16)
    optimizer = (BF16Optimizer if faulty else MixedOptimizer)(
        model.parameters(), lr=1e-2, clip=clip, group=group
    )
    ctx.watch(model, optimizer.optimizer, level="step")
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            labels = torch.randint(4, (16,))
            inputs = torch.randn(16, 16)
            inputs[torch.arange(16), labels] += 2.0
            loss = F.cross_entropy(model(inputs.bfloat16()).float(), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    outcome.facts["replicated"] = [each.tolist() for each in optimizer.masters[:2]]
    return outcome
