"""DeepSpeed 6809 (TrainCheck, Table 5, as DS-6089): the capacity of experts differs by rank.

https://github.com/deepspeedai/DeepSpeed/issues/6809: a mixture-of-experts layer that must not drop
tokens hangs in its all-to-all.  Its capacity is what the fullest expert needs, and every rank
computes that from its own tokens.  Table 5 gives the number 6089, but it describes the error of
report 6809.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_trainsafe.record.context import Context


def train(ctx: Context, faulty: bool = False, steps: int = 3, patience: float = 60.0) -> Outcome:
    """Train a regression with a mixture of experts.

    In the Outcome, `facts["capacities"]` has, for every step, the capacity that this rank's tokens
    need.  From the first step on, the ranks need different capacities.  With the error, the ranks
    wait for each other, and RuntimeError is raised after `patience` seconds.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.reference_models.toolkit.experts import ExpertsLayer

    class Unreduced(ExpertsLayer):
        """A layer with the error: the capacity follows from this rank's tokens alone."""

        def capacity(self, tokens: int, counts: Tensor) -> int:
            return self.local_capacity(tokens, counts)

    torch.manual_seed(ctx.seed)
    ctx.group("dp")  # starts torch.distributed
    # A separate group, because a timeout closes the connections of its group.
    group = dist.new_group(list(range(ctx.world_size)))
    assert group is not None
    layer = (Unreduced if faulty else ExpertsLayer)(8, group, drop_tokens=False, patience=patience)
    head = nn.Linear(8, 1)
    model = nn.ModuleList([layer, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, level="step")
    data = torch.Generator().manual_seed(ctx.seed + 1)
    outcome = Outcome(facts={"capacities": []})
    towards = (layer.router.weight[1] - layer.router.weight[0]).detach()
    for _ in range(steps):
        with ctx.step():
            inputs = torch.randn(10, 8, generator=data)
            # All tokens of the first rank choose the second expert; other tokens choose freely.
            if ctx.rank == 0:
                inputs = inputs + (5.0 - inputs @ towards)[:, None] * towards / towards.dot(towards)
            counts = torch.bincount(layer.router(inputs).argmax(dim=1), minlength=2)
            outcome.facts["capacities"].append(int(counts.max()))
            loss = F.mse_loss(head(layer(inputs)), inputs.sum(dim=1, keepdim=True))
            loss.backward()  # type: ignore[no-untyped-call]
            for name, parameter in model.named_parameters():
                if "expert." not in name and parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=group)
                    parameter.grad /= ctx.world_size
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    return outcome
