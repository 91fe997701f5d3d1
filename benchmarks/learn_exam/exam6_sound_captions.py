"""Two replicas learn to pair sounds with captions, each against the captions of both.

Follows https://github.com/galilai-group/stable-pretraining/pull/409.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Pairing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.sound = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 16))
        self.caption = nn.Sequential(nn.Linear(9, width), nn.ReLU(), nn.Linear(width, 16))
        self.logit_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, sounds: Tensor, captions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sound = nn.functional.normalize(self.sound(sounds), dim=-1)
        caption = nn.functional.normalize(self.caption(captions), dim=-1)
        return sound, caption, self.logit_scale.exp()


class ContrastiveLoss:
    """Each side of the local pairs against the gathered other side."""

    def __init__(self, with_offset: bool) -> None:
        self.with_offset = with_offset

    def labels(self, count: int) -> Tensor:
        labels = torch.arange(count)
        if self.with_offset:
            labels = labels + count * dist.get_rank()
        return labels

    def __call__(self, sound: Tensor, caption: Tensor, scale: Tensor) -> Tensor:
        sounds = torch.cat(collectives.all_gather(sound))
        captions = torch.cat(collectives.all_gather(caption))
        labels = self.labels(len(sound))
        forth = nn.functional.cross_entropy(scale * sound @ captions.T, labels)
        back = nn.functional.cross_entropy(scale * caption @ sounds.T, labels)
        return (forth + back) / 2


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    world = torch.randn(6, 12), torch.randn(6, 9)
    model = DistributedDataParallel(Pairing(size))
    criterion = ContrastiveLoss(with_offset=healthy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    torch.manual_seed(100 * (seed + 1) + dist.get_rank())
    losses = []
    for _ in range(30):
        event = torch.randn(16, 6)
        sound, caption, scale = model(event @ world[0], event @ world[1])
        loss = criterion(sound, caption, scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
