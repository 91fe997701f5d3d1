"""A query tower and a document tower, with negatives of the batch and a learned temperature."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TwoTower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, width))
        self.document = nn.Sequential(nn.Linear(14, width), nn.GELU(), nn.Linear(width, width))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, q: Tensor, d: Tensor) -> Tensor:
        left = F.normalize(self.query(q), dim=-1)
        right = F.normalize(self.document(d), dim=-1)
        return self.logit_scale.exp() * left @ right.t()


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    meaning = torch.randn(192, 5)
    queries = meaning @ torch.randn(5, 8) + 0.1 * torch.randn(192, 8)
    documents = meaning @ torch.randn(5, 14) + 0.1 * torch.randn(192, 14)
    model = TwoTower(size)
    decay = [p for n, p in model.named_parameters() if p.ndim > 1]
    plain = [p for n, p in model.named_parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.2}, {"params": plain, "weight_decay": 0.0}], lr=5e-3
    )
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=6)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=30)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cool], milestones=[6])
    losses = []
    for _ in range(6):
        for rows in torch.randperm(192).split(32):
            logits = model(queries[rows], documents[rows])
            target = torch.arange(len(rows))
            loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))
            losses.append(loss.item())
    return {"loss": losses}
