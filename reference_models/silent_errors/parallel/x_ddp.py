"""A post on X by jxmnop (TrainCheck's B10): the module inside of DDP is called instead of DDP.

https://x.com/jxmnop/status/1778520637193240892: a trainer uses sometimes the bare model and
sometimes the wrapped one.  A forward of the bare model skips DDP's forward, which prepares the
reduction of the gradients, so the replicas drift apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, faulty: bool = False, steps: int = 4) -> Outcome:
    """Train an autoencoder with DDP; with the error, call the module inside of DDP.

    In the Outcome, `facts["weights"]` has the sum of the elements of each of this rank's final
    parameters.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(ctx.seed)
    inner = nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 12))
    wrapped: nn.Module = inner
    if ctx.world_size > 1:
        wrapped = DistributedDataParallel(inner, process_group=ctx.group("dp"))
    model = inner if faulty else wrapped
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    ctx.watch(wrapped, optimizer, level="step")
    data = torch.Generator().manual_seed(ctx.seed + 1)
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            inputs = torch.randn(32, 12, generator=data).chunk(ctx.world_size)[ctx.rank]
            loss = F.mse_loss(model(inputs), inputs)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            outcome.losses.append(loss.item())
    outcome.facts["weights"] = [float(each.double().sum()) for each in inner.parameters()]
    return outcome
