"""DeepSpeed 5794 (TrainCheck's B16): an all-to-all that the ranks call with different sizes.

https://github.com/deepspeedai/DeepSpeed/issues/5794: training hangs in a mixture-of-experts layer.
TrainCheck describes the error as all-to-alls with conflicting arguments.  Here each rank computes
the capacity of an expert from its own number of tokens only, and from one step on, one rank has
longer sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_trainsafe.record.context import Context

#: The step in which the sequences of the ranks begin to differ.
TRIGGER = 1


def train(ctx: Context, faulty: bool = False, steps: int = 3, patience: float = 60.0) -> Outcome:
    """Train a mixture of experts, with one expert on each rank.

    In the Outcome, `facts["capacities"]` has, for every step, the capacity of an expert as it
    follows from this rank's tokens alone.  With the error the ranks wait for each other, and
    RuntimeError is raised after `patience` seconds.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.reference_models.toolkit.experts import ExpertsLayer

    class LocalCapacity(ExpertsLayer):
        """A layer with the error: the capacity follows from this rank's tokens alone."""

        def capacity(self, tokens: int, counts: Tensor) -> int:
            return self.local_capacity(tokens, counts)

    torch.manual_seed(ctx.seed)
    ctx.group("dp")  # starts torch.distributed
    # A separate group, because a timeout closes the connections of its group.
    group = dist.new_group(list(range(ctx.world_size)))
    assert group is not None
    layer = (LocalCapacity if faulty else ExpertsLayer)(12, group, patience=patience)
    embedding, head = nn.Embedding(20, 12), nn.Linear(12, 20)
    model = nn.ModuleDict({"embedding": embedding, "experts": layer, "head": head})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, level="step")
    data = torch.Generator().manual_seed(ctx.seed + 1 + ctx.rank)
    outcome = Outcome(facts={"capacities": []})
    for step in range(steps):
        with ctx.step():
            length = 6 + 2 * ctx.rank if step >= TRIGGER else 6
            tokens = torch.randint(20, (2, length), generator=data)
            outcome.facts["capacities"].append(layer.local_capacity(2 * length, tokens))
            hidden = layer(embedding(tokens).flatten(0, 1))
            loss = F.cross_entropy(head(hidden), ((tokens + 1) % 20).flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            for name, parameter in model.named_parameters():
                if "expert." not in name and parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=group)
                    parameter.grad /= ctx.world_size
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    return outcome
