"""Two replicas whose gradients travel in bfloat16, and who share the state of the optimizer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def compress(group, bucket):
    """Sums a bucket in bfloat16, and gives the mean back in the bucket's own dtype."""
    buffer = bucket.buffer()
    small = (buffer / group.size()).bfloat16()
    future = dist.all_reduce(small, group=group, async_op=True).get_future()
    return future.then(lambda done: buffer.copy_(done.value()[0]))


class Gauge(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.conv(x))).amax(-1))


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    shapes = torch.randn(3, 2, 12)
    model = DistributedDataParallel(Gauge(size), gradient_as_bucket_view=True)
    model.register_comm_hook(dist.group.WORLD, compress)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    g = torch.Generator().manual_seed(5 + 10 * seed + dist.get_rank())
    losses = []
    for _ in range(26):
        kind = torch.randint(3, (24,), generator=g)
        x = shapes[kind] + 0.7 * torch.randn(24, 2, 12, generator=g)
        loss = nn.functional.cross_entropy(model(x), kind)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return {"loss": losses}
