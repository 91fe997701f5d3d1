"""PyTorch 104336 (TrainCheck's B9): a DDP model that was moved is no longer synchronised.

https://github.com/pytorch/pytorch/issues/104336: DistributedDataParallel puts hooks on the gradient
accumulators of its parameters.  Moving the model to the CPU and back creates new accumulators
without hooks, and every rank continues alone.  Changing the dtype and back has the same effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: The step before which the model is cast to float64 and back.
TRIGGER = 2


def train(ctx: Context, faulty: bool = False, steps: int = 4) -> Outcome:
    """Train with DDP, and evaluate in float64 once, before step `TRIGGER`.

    Without the error, a copy of the model is cast to float64; with it, the model itself.  In the
    Outcome, `facts["weights"]` has the sum of the elements of each of this rank's final parameters.
    """
    import copy

    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(ctx.seed)
    inner = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))
    model: nn.Module = inner
    if ctx.world_size > 1:
        model = DistributedDataParallel(inner, process_group=ctx.group("dp"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, level="step")
    data = torch.Generator().manual_seed(ctx.seed + 1)
    outcome = Outcome()
    for step in range(steps):
        if step == TRIGGER:
            probe = torch.randn(4, 4, 8, dtype=torch.float64)
            wide = (model if faulty else copy.deepcopy(inner)).to(torch.float64)
            with torch.no_grad():
                wide(probe)
            wide.to(torch.float32)
        with ctx.step():
            inputs = torch.randn(32, 4, 8, generator=data).chunk(ctx.world_size)[ctx.rank]
            loss = F.cross_entropy(model(inputs), inputs[:, :3].mean(dim=2).argmax(dim=1))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    outcome.facts["weights"] = [float(each.double().sum()) for each in inner.parameters()]
    return outcome
