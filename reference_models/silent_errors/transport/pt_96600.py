"""PyTorch 96600 (TrainCheck's B17): gradients get lost between the GPUs of a data-parallel run.

https://github.com/pytorch/pytorch/issues/96600, with several RTX 4090: according to TrainCheck,
the cause is a broken peer-to-peer set-up.  Here, from one step on, the second rank loses the
gradients that the first sends, so the ranks update their replicas with different gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: The step in which the connection begins to lose data.
TRIGGER = 1


def train(ctx: Context, faulty: bool = False, steps: int = 4) -> Outcome:
    """Train two replicas on different data.

    In the Outcome, `facts["weights"]` has the sum of the elements of each of this rank's final
    parameters.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.reference_models.silent_errors.transport.lossy import LossyLink
    from pytest_trainsafe.reference_models.toolkit.devices import Link, average_gradients

    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3))
    count = len(list(model.parameters()))
    link = LossyLink(after=TRIGGER * count) if faulty and ctx.rank == 1 else Link()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ctx.watch(model, optimizer, level="step")
    data = torch.Generator().manual_seed(ctx.seed + 1)
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            inputs = torch.randn(32, 16, generator=data)
            inputs = inputs.chunk(ctx.world_size)[ctx.rank]
            labels = inputs[:, :3].argmax(dim=1)
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if ctx.world_size > 1:
                average_gradients(model, ctx.group("dp"), link)
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    outcome.facts["weights"] = [float(each.double().sum()) for each in model.parameters()]
    return outcome
