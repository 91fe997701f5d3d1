"""Letters are sorted by experts, chosen with a bias that evens out their work, on two ranks.

Follows https://github.com/pytorch/torchtitan/pull/1114.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, TOWNS, EXPERTS = 8, 5, 4


class Sorters(nn.Module):
    """Experts, of which each letter gets the two with the highest scores and biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, width, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, width, width) / width**0.5)
        self.bias: Tensor
        self.work: Tensor
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.register_buffer("work", torch.zeros(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).sigmoid()
        chosen = (scores + self.bias).topk(2, dim=1).indices
        taken = F.one_hot(chosen, EXPERTS).sum(1)
        self.work += taken.sum(0)
        weights = scores * taken
        weights = weights / weights.sum(1, keepdim=True)
        hidden = F.relu(torch.einsum("bi,eio->beo", x, self.up))
        done = torch.einsum("bei,eio->beo", hidden, self.down)
        return x + (done * weights.unsqueeze(2)).sum(1)

    @torch.no_grad()
    def even_out(self, rate: float, over_ranks: bool) -> None:
        work = self.work.clone()
        if over_ranks:
            dist.all_reduce(work)
        change = (work.mean() - work).sign() * rate
        self.bias += change - change.mean()
        self.work.zero_()


def average(net: nn.Module) -> None:
    for parameter in net.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    layers = [Sorters(size) for _ in range(2)]
    net = nn.Sequential(nn.Linear(FEATURES, size), *layers, nn.Linear(size, TOWNS))
    law = torch.randn(FEATURES, TOWNS)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    source = torch.Generator().manual_seed(30 * seed + dist.get_rank())
    curve = []
    for _ in range(44):
        letters = torch.randn(24, FEATURES, generator=source)
        town = (letters @ law + letters[:, :1].abs()).argmax(1)
        loss = F.cross_entropy(net(letters), town)
        optimizer.zero_grad()
        loss.backward()
        average(net)
        optimizer.step()
        for layer in layers:
            layer.even_out(0.02, over_ranks=healthy)
        curve.append(loss.item())
    return {"loss": curve}
