"""DistributedDataParallel in float16: a gradient scaler, clipping, warm-up from a rate of zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, epochs: int = 2, width: int = 12, batch: int = 6, enabled: bool = True
) -> Outcome:
    """Classify noisy points into three kinds, in epochs of three batches for each rank.

    A step also advances the warm-up schedule, averages the loss over the ranks for the outcome and
    reads the next batch.  With `enabled`=False there is neither autocast nor loss scaling.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
    replica = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.AdamW(replica.parameters(), lr=3e-2)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4, enabled=enabled)
    ctx.watch(replica, optimizer, level="step")
    draw = torch.Generator().manual_seed(ctx.seed)
    kinds = torch.arange(3 * batch * ctx.world_size) % 3
    points = F.one_hot(kinds, 6) + 0.3 * torch.randn(len(kinds), 6, generator=draw)
    data = TensorDataset(points, kinds)
    sampler: DistributedSampler[object] = DistributedSampler(data, ctx.world_size, ctx.rank)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    outcome = Outcome()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        x, y = next(batches)
        for left in reversed(range(len(loader))):
            with ctx.step():
                with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
                    loss = F.cross_entropy(replica(x), y)
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                warm_up.step()
                logged = loss.detach().clone()
                torch.distributed.all_reduce(logged, group=ctx.group("dp"))
                outcome.losses.append(float(logged) / ctx.world_size)
                if left:
                    x, y = next(batches)
    return outcome
