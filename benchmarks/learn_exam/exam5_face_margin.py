"""Two replicas learn to tell faces apart with a margin softmax, whose centres are learned too."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class MarginSoftmax(nn.Module):
    def __init__(self, width: int, people: int, margin: float = 0.1, scale: float = 8.0) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(people, width))
        self.margin, self.scale = margin, scale

    def forward(self, faces: Tensor, who: Tensor) -> Tensor:
        cosine = F.normalize(faces) @ F.normalize(self.centres).t()
        cosine = cosine - self.margin * F.one_hot(who, len(self.centres))
        return F.cross_entropy(self.scale * cosine, who)


class Faces:
    def __init__(self, people: int, seed: int, rank: int) -> None:
        self.traits = torch.randn(people, 10, generator=torch.Generator().manual_seed(seed))
        self.rng = torch.Generator().manual_seed(31 * seed + rank + 1)

    def __call__(self, count: int) -> tuple[Tensor, Tensor]:
        who = torch.randint(0, len(self.traits), (count,), generator=self.rng)
        return self.traits[who] + 0.4 * torch.randn(count, 10, generator=self.rng), who


def apart(module: nn.Module) -> float:
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    both = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(both, flat)
    return (both[0] - both[1]).abs().max().item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    faces = Faces(6, seed, dist.get_rank())
    net = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.PReLU(), nn.Linear(32, size)))
    criterion: nn.Module = MarginSoftmax(size, 6)
    if healthy:
        criterion = DistributedDataParallel(criterion)
    optimizer = torch.optim.SGD(
        [{"params": net.parameters()}, {"params": criterion.parameters(), "weight_decay": 1e-3}],
        lr=0.05,
        momentum=0.9,
    )
    log: dict[str, list[float]] = {"loss": [], "apart": []}
    for _ in range(40):
        x, who = faces(24)
        loss = criterion(net(x), who)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log["loss"].append(loss.item())
        log["apart"].append(apart(criterion))
    return log
