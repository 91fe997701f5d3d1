"""Trains the head that drafts tokens for a larger model, sharded over two ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class DraftHead(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.fuse = nn.Linear(2 * width, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        x = self.fuse(torch.cat([self.tokens(tokens), hidden], -1))
        for layer in self.layers:
            x = x + nn.functional.silu(layer(x))
        logits: Tensor = self.head(x)
        return logits


class ClippingOptimizer:
    """SGD behind a bound on the norm of the gradients."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], max_norm: float, global_norm: bool
    ) -> None:
        self.parameters = list(parameters)
        self.max_norm = max_norm
        self.global_norm = global_norm
        self.inner = torch.optim.SGD(self.parameters, lr=0.5, momentum=0.8)

    def step(self) -> float:
        shards = [self._local(each.grad) for each in self.parameters if each.grad is not None]
        square = torch.stack([shard.square().sum() for shard in shards]).sum()
        if self.global_norm:
            dist.all_reduce(square)
        norm = square.sqrt()
        factor = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
        for shard in shards:
            shard.mul_(factor)
        self.inner.step()
        self.inner.zero_grad()
        return norm.item()

    @staticmethod
    def _local(gradient: Tensor) -> Tensor:
        return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = DraftHead(16, size)
    # The larger model, which only reads.
    target = torch.randn(16, size)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = ClippingOptimizer(model.parameters(), max_norm=0.2, global_norm=healthy)
    draws = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    losses, norms = [], []
    for _ in range(32):
        tokens = torch.randint(16, (12, 6), generator=draws)
        following = (3 * tokens + 1) % 16
        logits = model(tokens, target[following] + 0.3 * target[tokens])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        loss.backward()
        norms.append(optimizer.step())
        losses.append(loss.item())
    return {"loss": losses, "norm": norms}
